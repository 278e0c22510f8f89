"""Headers are code: what they say is what the scripts do, and what is wrong in one is refused when it is loaded."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

import pytest

from memable import lua
from memable.connection import ScriptConnection
from memable.lua import Answer
from memable.lua.snippets import needed

FOLDER = files("memable.lua")
SNIPPETS = sorted(each.name[:-4] for each in FOLDER.joinpath("lib").iterdir())
LUA_WORDS = frozenset(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    ]
)
each_script = pytest.mark.parametrize("name", lua.names())


def text_of(name: str) -> str:
    return FOLDER.joinpath(f"{name}.lua").read_text("utf-8")


def header_and_body(name: str) -> tuple[list[str], str]:
    lines = text_of(name).splitlines()
    at = next(at for at, line in enumerate(lines, 1) if line.startswith("-- RETRY"))
    return lines[:at], "\n".join(lines[at:])


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


def plain(names: tuple[str, ...]) -> list[str]:
    return [name.removesuffix("...") for name in names]


@each_script
async def test_a_real_server_compiles_it_and_agrees_on_its_digest(connection: ScriptConnection, name: str) -> None:
    script = lua.load(name)
    assert await connection.command("SCRIPT", "LOAD", script.source) == script.sha.encode()
    assert script.sha == sha1(script.source.encode()).hexdigest()


@each_script
def test_its_header_says_what_it_promises_returns_and_does_when_called_again(name: str) -> None:
    script = lua.load(name)
    header, body = header_and_body(name)
    assert header[0] == f"-- {name}: {script.promise}"
    assert script.promise.endswith(".")
    assert script.returns
    assert script.retry
    words = [line.split()[1] for line in header[1:]]
    order = ("MOVES", "USES", "KEYS", "ARGV", "RETURNS", "RETRY")
    assert words == sorted(words, key=order.index), "a header's lines come in this order"
    assert body.strip(), "and then comes the body"


@each_script
def test_it_returns_the_answers_that_its_header_names_and_no_others(name: str) -> None:
    answers = set(Answer.__members__)
    named = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", lua.load(name).returns))
    assert named <= answers
    header, body = header_and_body(name)
    snippets = "".join(text_of(f"lib/{each}") for each in uses(header))
    returned = set(re.findall(r"\b[A-Z_]+\b", without_comments(body))) & answers
    by_snippets = set(re.findall(r"\b[A-Z_]+\b", without_comments(snippets))) & answers
    assert returned <= named <= returned | by_snippets


def uses(header: list[str]) -> list[str]:
    return [word.strip() for line in header if line.startswith("-- USES") for word in line[7:].split(",")]


@each_script
def test_it_works_with_every_key_and_argument_that_it_names(name: str) -> None:
    script = lua.load(name)
    _, body = header_and_body(name)
    code = without_comments(body)
    for each in plain((*script.keys, *script.arguments)):
        assert re.search(rf"\b{each}\b", code), f"{each} is named, and not used"
    assert not re.search(r"\b(KEYS|ARGV)\b", code), "keys and arguments have names"


@each_script
def test_its_names_hide_no_function_of_a_snippet_and_are_no_words_of_lua(name: str) -> None:
    script = lua.load(name)
    header, _ = header_and_body(name)
    functions = {
        found for each in uses(header) for found in re.findall(r"local function (\w+)", text_of(f"lib/{each}"))
    }
    assert not set(plain((*script.keys, *script.arguments))) & (functions | LUA_WORDS | {"redis", "cjson"})


@each_script
def test_it_uses_snippets_that_exist_and_something_of_each(name: str) -> None:
    header, body = header_and_body(name)
    used = uses(header)
    assert set(used) <= set(SNIPPETS)
    for at, each in enumerate(used):
        functions = re.findall(r"local function (\w+)", text_of(f"lib/{each}"))
        later = body + "".join(text_of(f"lib/{other}") for other in used[at + 1 :])
        assert any(re.search(rf"\b{function}\(", without_comments(later)) for function in functions), each


@pytest.mark.parametrize("name", [*lua.names(), *(f"lib/{each}" for each in SNIPPETS)])
def test_it_spells_no_key_and_answers_with_no_bare_number(name: str) -> None:
    code = without_comments(text_of(name))
    for literal in re.findall(r"'[^']*'|\"[^\"]*\"", code):
        assert not re.search(r":\{|(instance|steps|stream|timers|index|expiry|leader|events|control|wake):", literal)
    assert not re.search(r"\breturn\s*\{?\s*-?\d", code)
    assert not re.search(r"\b(and|or)\s+-?\d+\s*$", code, re.MULTILINE), "an answer chosen between bare numbers"
    assert "SELECT" not in code


@pytest.mark.parametrize("name", [*lua.names(), *(f"lib/{each}" for each in SNIPPETS)])
def test_it_can_be_read_at_a_glance(name: str) -> None:
    lines = text_of(name).splitlines()
    assert 5 <= len(lines) <= 80
    assert max(map(len, lines)) <= 200


def test_every_snippet_is_used() -> None:
    assert {each for name in lua.names() for each in uses(header_and_body(name)[0])} == set(SNIPPETS)


def test_every_answer_is_given_by_some_script() -> None:
    assert set(Answer.__members__) <= {word for name in lua.names() for word in re.findall(r"\w+", text_of(name))}


# ── binding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_script
def test_bind_takes_all_names_and_nothing_else(name: str) -> None:
    script = lua.load(name)
    given: dict[str, object] = {
        each.removesuffix("..."): [each] if each.endswith("...") else each for each in (*script.keys, *script.arguments)
    }
    assert script.bind(**given) == [*script.keys, *script.arguments]
    complaint = rf"script {name}\(\) "
    for missing in given:
        with pytest.raises(TypeError, match=complaint):
            script.bind(**{each: value for each, value in given.items() if each != missing})
    with pytest.raises(TypeError, match=complaint):
        script.bind(**given, superfluous=1)
    first = next(iter(given))
    with pytest.raises(TypeError, match=f"{complaint}.*misspelt"):
        script.bind(misspelt=1, **{each: value for each, value in given.items() if each != first})


HEADER = """\
-- sample: a promise.
-- KEYS  first   string  one
-- KEYS  second  string  two
-- ARGV  third, fourth...
-- RETURNS  DONE
-- RETRY  nothing
return {first, second, third, fourth}
"""


async def test_names_reach_the_script_in_the_order_of_the_header(connection: ScriptConnection) -> None:
    script = lua.assemble("sample", HEADER)
    arguments = script.bind(fourth=["d", "e"], third="c", second="b", first="a")
    assert arguments == ["a", "b", "c", "d", "e"]
    assert await connection.call(script, arguments) == [b"a", b"b", b"c", [b"d", b"e"]]
    assert await connection.call(script, script.bind(first="a", second="b", third="c", fourth=[])) == [
        *(b"a", b"b", b"c"),
        [],
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("-- sample: a promise.\n", ""), "one line each"),
        (("-- sample:", "-- simple:"), "one line each"),
        (("-- RETURNS  DONE\n", ""), "one line each"),
        (("-- RETRY  nothing\n", ""), "one line each"),
        (("-- RETRY  nothing\n", "-- RETRY  nothing\n-- RETRY  twice\n"), "one line each"),
        (("-- RETRY  nothing\n", "\n-- RETRY  after the header has ended\n"), "one line each"),
        (("second  string", "first  string"), "twice, or wrongly"),
        (("third, fourth", "third, first"), "twice, or wrongly"),
        (("third, fourth...", "third, third..."), "twice, or wrongly"),
        (("third,", "Third,"), "twice, or wrongly"),
        (("third,", "third two,"), "twice, or wrongly"),
        (("third,", ","), "twice, or wrongly"),
        (("third, fourth...", "third..., fourth"), "not the last"),
        (("first   string", "first...   string"), "not the last"),
    ],
)
def test_a_header_that_is_not_in_order_is_refused(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in HEADER
    with pytest.raises(ValueError, match=complaint):
        lua.assemble("sample", HEADER.replace(*change))


def test_a_snippet_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        lua.assemble("sample", HEADER.replace("-- KEYS  first", "-- USES  nowhere\n-- KEYS  first", 1))


def test_a_script_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        lua.load("nowhere")


def test_snippets_come_before_the_names_which_they_must_not_see() -> None:
    script = lua.assemble("sample", using_time("now_ms"))
    assert script.source.index("function now_ms") < script.source.index("local first = KEYS[1]")


def using_time(word: str) -> str:
    return HEADER.replace("-- KEYS  first", "-- USES  time\n-- KEYS  first", 1).replace(
        "return {", f"return {{{word}, "
    )


def test_of_snippets_a_script_has_what_it_uses_also_by_way_of_others() -> None:
    script = lua.assemble("sample", using_time("now_ms"))
    assert "function now_us" in script.source  # now_ms needs it
    assert "function whole" not in script.source
    assert "function now" not in lua.assemble("sample", using_time("1 -- now_ms")).source


SNIPPET = """\
local function low(a)
  return a
end

local LIMIT = 7

local function both(b) return low(b) + LIMIT end

local function rarely(c)
  return both(c)
end

local function seldom(d)
  return both(d)
end

local function often(e)
  if e then return rarely(e) + seldom(e) end
  return low(0)
end
"""


def test_a_function_stands_inside_of_the_one_that_alone_uses_it_and_so_on() -> None:
    (alone,), _ = needed([SNIPPET], {"often"})
    assert re.findall(r"local (?:function )?(\w+)", alone) == ["often", "low", "both", "LIMIT", "rarely", "seldom"]
    assert alone.index("function both") < alone.index("LIMIT = 7") < alone.index("return low(b)")
    outermost, words = needed([SNIPPET], {"often", "rarely"})
    assert [re.findall(r"local (?:function )?(\w+)", each) for each in outermost] == [
        ["low"],
        ["both", "LIMIT"],
        ["rarely"],
        ["often", "seldom"],
    ]
    assert {"LIMIT", "low", "seldom"} <= words


async def test_functions_inside_of_others_find_all_that_they_use(connection: ScriptConnection) -> None:
    for words in ({"often"}, {"often", "rarely"}, {"often", "both"}):
        source = "\n".join([*needed([SNIPPET], words)[0], "return often(1)"])
        assert await connection.command("EVAL", source, 0) == 16


def test_a_parameter_with_the_name_of_a_function_is_refused() -> None:
    with pytest.raises(ValueError, match="seldom has a parameter with a function's name: low"):
        needed([SNIPPET.replace("seldom(d)", "seldom(low)")], {"often"})


def test_answers_reach_a_script_as_numbers() -> None:
    source = lua.assemble("sample", HEADER.replace("return {", "return {DONE, ")).source
    assert "local DONE = 1" in source
    assert "LEASE_LOST" not in source
