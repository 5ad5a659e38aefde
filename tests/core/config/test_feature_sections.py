"""Sections that features add to the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core import feature
from interlock.core.config import Config, ConfigError, config_json_schema, diff, parse_config
from interlock.core.config.feature_sections import (
    SectionDefinition,
    apply_environment,
    fields_of,
    make_config,
)
from interlock.core.config.load import peek_config
from interlock.core.config.reader import NodeReader
from interlock.core.config.reference import config_reference
from interlock.core.config.section import Count, FeatureSection, Text, help_text


class Lamps(FeatureSection, frozen=True):
    """The lamps of a ship."""

    KEY = "lamps"
    RESTART = ("path",)

    most: Annotated[Count, help_text("The most lamps at once.")] = 3
    path: Annotated[Text, help_text("Where they are.")] = "/lamps"


class Anchor(FeatureSection, frozen=True):
    """The anchor of a ship."""

    KEY = "anchor"

    weight: Annotated[Count, help_text("In kilograms.")]


def check_lamps(reader: NodeReader, values: dict[str, Any]) -> None:
    if values.get("page_size") == 13:
        reader.report(("page_size",), "no ship has 13", "write another number")


def apply_lamps_variable(config: Config, environ: Mapping[str, str]) -> Config:
    most = environ.get("LAMPS")
    return config if most is None else config.with_sections(Lamps(most=int(most)))


LAMPS: Final = SectionDefinition(
    Lamps,
    check=check_lamps,
    environment=apply_lamps_variable,
    reference=(("`lamps`", Lamps, "Keep them lit."),),
)
ANCHOR: Final = SectionDefinition(Anchor, "What holds the ship. Default: nothing.")


@pytest.fixture(autouse=True)
def register_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "interlock.core.config.feature_sections.load_object",
        lambda reference: {"lamps": LAMPS, "anchor": ANCHOR}[reference],
    )
    monkeypatch.setattr(feature, "_section_references", ())
    feature.register_sections(["lamps", "anchor"])
    feature.register_sections(["lamps"])


def test_reads_section_or_its_default() -> None:
    config = parse_config("lamps: {most: 5}\nanchor: {weight: 7}\n")
    assert config.section(Lamps) == Lamps(most=5)
    assert config.section(Anchor).weight == 7
    assert Config().section(Lamps) == Lamps()
    assert Config().optional_section(Anchor) is None


@pytest.mark.parametrize("text", ["lamps:\n", "lamps: {}\n", "lamps: {most: 3}\n", "anchor:\n"])
def test_config_with_default_section_equals_config_without(text: str) -> None:
    assert parse_config(text) == Config()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lamps: {most: 0}\n", "lamps.most"),
        ("lamps: {mst: 1}\n", 'did you mean "most"'),
        ("anchor: {}\n", "weight is missing"),
        ("lmps: {}\n", 'did you mean "lamps"'),
        ("sections: []\n", "unknown key"),
        ("page_size: 13\n", "no ship has 13"),
    ],
)
def test_reports_section_problems_like_other_keys(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(text)


def test_rejects_unregistered_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feature, "_section_references", ("anchor",))
    with pytest.raises(ConfigError, match="lamps: unknown key"):
        parse_config("lamps: {}\n")
    assert Config(sections=[Lamps(most=9)]).section(Lamps).most == 9


def test_replaces_section_with_default() -> None:
    config = Config(sections=[Lamps(most=5), Anchor(weight=1)])
    assert config.with_sections(Lamps(most=6)).section(Lamps).most == 6
    assert config.with_sections(Lamps()) == Config(sections=[Anchor(weight=1)])


@given(st.permutations([Lamps(most=5), Anchor(weight=1), Lamps(most=4)]))
def test_ignores_order_of_sections(sections: list[FeatureSection]) -> None:
    config = Config(sections=sections)
    expected = [section for section in sections if isinstance(section, Lamps)][-1]
    assert config == Config(sections=[expected, Anchor(weight=1)])


def test_reports_changes_in_sections() -> None:
    old = Config()
    assert diff(old, Config(sections=[Lamps(most=5)])).live == ("lamps",)
    moved = diff(old, Config(sections=[Lamps(path="/x")]))
    assert (moved.live, moved.restart) == ((), ("lamps.path",))
    both = diff(Config(sections=[Lamps(path="/x", most=5), Anchor(weight=1)]), old)
    assert (both.live, both.restart) == (("anchor", "lamps"), ("lamps.path",))
    assert not diff(old, Config(sections=[Lamps()]))


def test_environment_overrides_file() -> None:
    config = parse_config("lamps: {most: 5}\n")
    assert apply_environment(config, {"LAMPS": "8"}).section(Lamps).most == 8
    assert apply_environment(config, {}) is config


def test_schema_and_reference_contain_sections() -> None:
    schema = config_json_schema()
    assert schema["properties"]["lamps"]["anyOf"] == [{"$ref": "#/$defs/Lamps"}, {"type": "null"}]
    assert schema["properties"]["anchor"]["description"] == "What holds the ship. Default: nothing."
    assert "sections" not in schema["properties"]
    assert [*fields_of(Config)][-2:] == ["lamps", "anchor"]
    page = config_reference()
    assert "| `lamps` | keys of its own |  | The lamps of a ship. |" in page
    assert "| `anchor` | keys of its own |  | What holds the ship. Default: nothing. |" in page
    assert "## `lamps`\n\nThe lamps of a ship. Keep them lit.\n" in page


def test_makes_config_from_file_values(tmp_path: Any) -> None:
    values = {"page_size": 5, "lamps": Lamps(most=5), "anchor": None}
    assert make_config(values) == Config(page_size=5, sections=[Lamps(most=5)])
    file = tmp_path / "interlock.yaml"
    file.write_text("lamps: {most: 5}\nnonsense: 1\n")
    assert peek_config(file).section(Lamps).most == 5
