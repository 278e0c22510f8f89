"""The zone table that `worker`'s sync reads: every real row, and every kind of bad one."""

from zoneinfo import ZoneInfo

import pytest

from worker.zones import (
    Rejected,
    SourceRow,
    Zone,
    convert_row,
    differences,
    digest_of,
    parse_coordinates,
    parse_countries,
    parse_source,
    read_source,
)

CODES = frozenset({"AD", "AE", "OM", "GB"})
NAMES = frozenset({"Europe/Andorra", "Asia/Dubai", "Europe/London"})


def zone(name: str = "Europe/Andorra", *, latitude: float = 42.5) -> Zone:
    return Zone(name=name, countries=("AD",), latitude=latitude, longitude=1.516667, comment=None)


def row(*, countries: str = "AD", coordinates: str = "+4230+00131", comment: str | None = None) -> SourceRow:
    return SourceRow(line=7, name="Europe/Andorra", countries=countries, coordinates=coordinates, comment=comment)


def test_every_row_of_the_real_table_is_read_and_converted() -> None:
    source = read_source()
    zones = [convert_row(each, source.country_codes) for each in source.rows]

    assert source.rejected == ()
    assert [each for each in zones if not isinstance(each, Zone)] == []
    assert len(zones) > 300
    assert len(source.country_codes) > 240
    for each in source.rows:
        assert ZoneInfo(each.name).key == each.name


def test_known_places_are_where_they_should_be() -> None:
    source = read_source()
    zones = {each.name: convert_row(each, source.country_codes) for each in source.rows}

    assert zones["Europe/Berlin"] == Zone(
        name="Europe/Berlin",
        countries=("DE", "DK", "NO", "SE", "SJ"),
        latitude=52.5,
        longitude=13.366667,
        comment="most of Germany",
    )
    new_york = zones["America/New_York"]
    assert isinstance(new_york, Zone)
    assert (new_york.latitude, new_york.longitude) == (40.714167, -74.006389)


def test_a_source_is_the_same_each_time_it_is_read() -> None:
    assert read_source() == read_source()


def test_a_source_survives_json_as_a_record_would() -> None:
    source = read_source()
    text = source.model_dump_json()
    assert type(source).model_validate_json(text, strict=True) == source
    assert len(text) < 200_000


def test_lines_that_are_no_rows_are_rejected_with_line_and_reason_and_the_others_are_kept() -> None:
    text = (
        "# a comment\n"
        "AD\t+4230+00131\tEurope/Andorra\n"
        "\n"
        "AE,OM\t+2518+05518\tAsia/Dubai\t  \n"
        "AD\t+4230+00131\n"
        "AD\t+4230+00131\tEurope/Atlantis\n"
        "GB\t+5130-00007\tEurope/Andorra\n"
        "GB\t+5130-00007\tEurope/London\tone\ttoo many\n"
    )
    source = parse_source(text, version="test", country_codes=CODES, zone_names=NAMES)

    assert [(each.line, each.name, each.comment) for each in source.rows] == [
        (2, "Europe/Andorra", None),
        (4, "Asia/Dubai", None),
    ]
    assert [(each.line, each.reason) for each in source.rejected] == [
        (5, "2 columns instead of 3 or 4"),
        (6, "there is no zone 'Europe/Atlantis'"),
        (7, "Europe/Andorra is in line 2 already"),
        (8, "5 columns instead of 3 or 4"),
    ]
    assert source.rejected[0].text == "AD\t+4230+00131"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+0000+00000", (0.0, 0.0)),
        ("+9000+18000", (90.0, 180.0)),
        ("-9000-18000", (-90.0, -180.0)),
        ("+5130-00007", (51.5, -0.116667)),
        ("+404251-0740023", (40.714167, -74.006389)),
        ("-0016+03627", (-0.266667, 36.45)),
    ],
)
def test_coordinates_become_decimal_degrees(text: str, expected: tuple[float, float]) -> None:
    assert parse_coordinates(text) == expected


def test_no_coordinate_is_a_negative_zero_since_sqlite_would_not_keep_it() -> None:
    assert str(parse_coordinates("-0000-00000")) == "(0.0, 0.0)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+4230",
        "4230+00131",
        "+4230+0131",
        "+4260+00131",
        "+4230+00160",
        "+423060+0013100",
        "+423000+00131",
        "+4230+0013100",
        "+9001+00000",
        "+0000+18001",
        "+4230+00131 ",
        "+4230+00131\n",
        "+٤٢٣٠+00131",
    ],
)
def test_other_coordinates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="coordinates"):
        parse_coordinates(text)


def test_countries_keep_their_order() -> None:
    assert parse_countries("OM,AE", CODES) == ("OM", "AE")


@pytest.mark.parametrize("text", ["", "XX", "AD,", "AD,,AE", "ad", "AD, AE", "AD,AD"])
def test_other_countries_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="country codes"):
        parse_countries(text, CODES)


@pytest.mark.parametrize("bad", [row(countries="XX"), row(coordinates="here")])
def test_a_row_that_cannot_be_converted_is_a_result_with_its_reason(bad: SourceRow) -> None:
    rejected = convert_row(bad, CODES)
    assert isinstance(rejected, Rejected)
    assert rejected.line == 7
    assert "Europe/Andorra" in rejected.text
    assert rejected.reason


def test_a_digest_depends_on_every_field_and_not_on_order() -> None:
    one, other = zone(), zone("Asia/Dubai")
    assert digest_of([one, other]) == digest_of([other, one])
    for change in ({"countries": ("GB",)}, {"latitude": 42.6}, {"longitude": 1.6}, {"comment": "x"}, {"name": "x"}):
        assert digest_of([one]) != digest_of([one.model_copy(update=change)])


def test_differences_name_what_is_missing_too_many_or_other() -> None:
    expected = [zone("A"), zone("B"), zone("C")]
    found = [zone("B"), zone("C", latitude=1.0), zone("D")]
    missing, other, extra = differences(expected, found)
    assert missing == "A: missing"
    assert other.startswith("C: expected")
    assert extra == "D: not in the source"
    assert differences(expected, list(reversed(expected))) == ()
