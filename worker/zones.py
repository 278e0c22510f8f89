"""The IANA zone table as the PyPI package `tzdata` ships it: read, checked, converted. No I/O but reading the package.

Of the tables in the package `zone1970.tab` is the one to sync: one row for each zone whose clocks have differed since
1970, with *all* its countries (`zone.tab` repeats a zone's row for each country, `tzdata.zi` has rules but no places).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files

from pydantic import BaseModel, ConfigDict

COORDINATES = re.compile(
    r"(?P<lat_sign>[+-])(?P<lat_deg>[0-9]{2})(?P<lat_min>[0-5][0-9])(?P<lat_sec>[0-5][0-9])?"
    r"(?P<lon_sign>[+-])(?P<lon_deg>[0-9]{3})(?P<lon_min>[0-5][0-9])(?P<lon_sec>[0-5][0-9])?"
)
"""ISO 6709 as the table uses it: ±DDMM±DDDMM or ±DDMMSS±DDDMMSS."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceRow(_Record):
    """A row of the table that has the right columns and names a zone; nothing in it is converted yet."""

    line: int
    name: str
    countries: str
    coordinates: str
    comment: str | None


class Zone(_Record):
    """A converted row: what the target holds."""

    name: str
    countries: tuple[str, ...]
    """ISO 3166 codes; the country of the zone's most populous city first."""
    latitude: float
    """Decimal degrees, north positive, to six places (11 cm)."""
    longitude: float
    """Decimal degrees, east positive, to six places."""
    comment: str | None


class Rejected(_Record):
    """A row that cannot be converted, and why."""

    line: int
    text: str
    reason: str


class Source(_Record):
    """The table at one moment, with all that is needed to convert it."""

    version: str
    """Of the package, such as `2025.2` for IANA's release 2025b."""
    digest: str
    """SHA-256 of the table's text."""
    rows: tuple[SourceRow, ...]
    rejected: tuple[Rejected, ...]
    country_codes: frozenset[str]


def read_source() -> Source:
    """The zone table of the installed `tzdata`."""
    folder = files("tzdata")
    zoneinfo = folder.joinpath("zoneinfo")
    countries = zoneinfo.joinpath("iso3166.tab").read_text(encoding="utf-8")
    return parse_source(
        zoneinfo.joinpath("zone1970.tab").read_text(encoding="utf-8"),
        version=version("tzdata"),
        country_codes=frozenset(line.split("\t")[0] for _, line in _content(countries)),
        zone_names=frozenset(folder.joinpath("zones").read_text(encoding="utf-8").split()),
    )


def parse_source(text: str, *, version: str, country_codes: frozenset[str], zone_names: frozenset[str]) -> Source:
    """`text` split into rows; every line that is no comment becomes a row or is rejected with its reason.

    After this the name of a row is one of `zone_names` and no two rows have the same: names can be keys.
    """
    rows: dict[str, SourceRow] = {}
    rejected: list[Rejected] = []
    for number, line in _content(text):
        columns = line.split("\t")
        if len(columns) not in (3, 4):
            rejected.append(Rejected(line=number, text=line, reason=f"{len(columns)} columns instead of 3 or 4"))
            continue
        countries, coordinates, name = columns[:3]
        if name not in zone_names:
            rejected.append(Rejected(line=number, text=line, reason=f"there is no zone {name!r}"))
        elif name in rows:
            rejected.append(Rejected(line=number, text=line, reason=f"{name} is in line {rows[name].line} already"))
        else:
            comment = columns[3].strip() or None if len(columns) == 4 else None
            rows[name] = SourceRow(
                line=number, name=name, countries=countries, coordinates=coordinates, comment=comment
            )
    return Source(
        version=version,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        rows=tuple(rows.values()),
        rejected=tuple(rejected),
        country_codes=country_codes,
    )


def convert_row(row: SourceRow, country_codes: frozenset[str]) -> Zone | Rejected:
    """The row as a `Zone`, or the reason why it is none.

    A bad row is a result and no exception: it is no fault of this run, trying again would not mend it, and the other
    rows are wanted all the same.
    """
    try:
        latitude, longitude = parse_coordinates(row.coordinates)
        countries = parse_countries(row.countries, country_codes)
    except ValueError as error:
        text = "\t".join(filter(None, (row.countries, row.coordinates, row.name, row.comment)))
        return Rejected(line=row.line, text=text, reason=str(error))
    return Zone(name=row.name, countries=countries, latitude=latitude, longitude=longitude, comment=row.comment)


def parse_coordinates(text: str) -> tuple[float, float]:
    """Latitude and longitude in decimal degrees; `ValueError` for what is not a place on Earth.

    >>> parse_coordinates("+5230+01322"), parse_coordinates("-5448-06818"), parse_coordinates("+404251-0740023")
    ((52.5, 13.366667), (-54.8, -68.3), (40.714167, -74.006389))
    """
    match = COORDINATES.fullmatch(text)
    if match is None or (match["lat_sec"] is None) != (match["lon_sec"] is None):
        raise ValueError(f"coordinates {text!r} are neither ±DDMM±DDDMM nor ±DDMMSS±DDDMMSS")
    latitude, longitude = (_degrees(match, axis) for axis in ("lat", "lon"))
    if abs(latitude) > 90 or abs(longitude) > 180:
        raise ValueError(f"coordinates {text!r} are not on Earth")
    return latitude, longitude


def parse_countries(text: str, country_codes: frozenset[str]) -> tuple[str, ...]:
    """The country codes of a row in their order; `ValueError` for none, unknown ones and repeated ones."""
    codes = tuple(text.split(","))
    if unknown := [code for code in codes if code not in country_codes]:
        raise ValueError(f"unknown country codes {', '.join(map(repr, unknown))}")
    if len(set(codes)) != len(codes):
        raise ValueError(f"country codes {text!r} repeat")
    return codes


def digest_of(zones: Iterable[Zone]) -> str:
    """One SHA-256 for a set of zones, in whatever order they come."""
    lines = sorted(json.dumps(zone.model_dump(mode="json"), sort_keys=True) for zone in zones)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def differences(expected: Sequence[Zone], found: Sequence[Zone]) -> tuple[str, ...]:
    """One line for each zone that is missing, differs, or should not be there; in order of names."""
    wanted, present = ({zone.name: zone for zone in zones} for zones in (expected, found))
    lines: list[str] = []
    for name in sorted(wanted.keys() | present.keys()):
        if name not in present:
            lines.append(f"{name}: missing")
        elif name not in wanted:
            lines.append(f"{name}: not in the source")
        elif wanted[name] != present[name]:
            lines.append(f"{name}: expected {wanted[name]}, found {present[name]}")
    return tuple(lines)


def _content(table: str) -> Iterable[tuple[int, str]]:
    """The lines that are neither empty nor comments, with their numbers from 1."""
    # not splitlines: it also splits at characters that may stand inside a comment column
    for number, line in enumerate(table.split("\n"), start=1):
        if line and not line.startswith("#"):
            yield number, line


def _degrees(match: re.Match[str], axis: str) -> float:
    degrees, minutes, seconds = (int(match[f"{axis}_{part}"] or 0) for part in ("deg", "min", "sec"))
    sign = -1 if match[f"{axis}_sign"] == "-" else 1
    # rounded, so that equal places have equal digits and a digest of them means something; + 0.0 because a row at
    # -0000 would otherwise be -0.0, which SQLite hands back as 0.0
    return sign * round(degrees + minutes / 60 + seconds / 3600, 6) + 0.0
