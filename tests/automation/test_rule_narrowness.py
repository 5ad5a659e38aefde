"""Tests that a learned rule covers only calls similar to decided calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision
from interlock.automation.folders import read_path
from interlock.automation.replay import VERDICTS
from interlock.automation.rule import CompiledRule, read_case
from interlock.automation.suggestion import suggest
from interlock.core.config import LearnedRule
from interlock.core.redaction import is_secret_key
from tests.automation.past_decisions import (
    SETTINGS,
    histories,
    make_decision_record,
    make_decisions,
)
from tests.support.line_count import count_lines_run

MANY = range(25)
PROGRAMS = (
    "ls",
    "git",
    "cat",
    "docker",
    "kubectl",
    "npm",
    "pip",
    "curl",
    "tar",
    "make",
    "sed",
    "dd",
)


def covers(rule: LearnedRule, arguments: Any, **fields: Any) -> bool | None:
    return CompiledRule(rule).matches_decision(read_case(make_decision_record(arguments, **fields)))


def suggest_rules(history: list[HumanDecision]) -> list[LearnedRule]:
    return [one.rule for one in suggest(history, SETTINGS)]


# -- what teaches nothing


@pytest.mark.parametrize(
    "arguments",
    [
        [{"command": f"ls /tmp/a{one}"} for one in MANY],
        [{"input": f"ls /tmp/a{one}"} for one in MANY],
        [{"text": f"select * from t where id={one}"} for one in MANY],
        [{"text": f"{PROGRAMS[one % 12]} job{one}"} for one in range(40)],
        [{"text": f"{PROGRAMS[one % 12]} -v /srv/{one} {'x' * 1_100}"} for one in range(40)],
        [{"text": f"frobnicate job{one}"} for one in MANY],
        [{"text": f"see https://h{one}.example/ for more"} for one in MANY],
        [{"q": f"find me number {one}"} for one in MANY],
        [{"system_prompt": f"Please look at number {one} for me."} for one in MANY],
        [{"instructions": f"Please look at number {one} for me."} for one in MANY],
        [{"filepath": f"my note {one}.md"} for one in MANY],
        [{"path": f"note-{one}.md", "content": "x"} for one in MANY],
        [{"paths": [f"/tmp/a/{one}"]} for one in MANY],
        [{"options": {"path": f"/tmp/a/{one}"}} for one in MANY],
        [{"options": [f"some words {one}"]} for one in MANY],
        [{"key": "color", "value": "x"} for _ in MANY],
        [{"value": f"see ghp_abcdefghijklmnopqrstuvwxyz01234567{one:02}"} for one in MANY],
        [{"path": f"/tmp/a/{one} b"} for one in MANY],
        [{"path": f"/tmp/a;b/{one}"} for one in MANY],
        [{"path": f"/tmp//a/{one}"} for one in MANY],
        [{"path": f"/tmp/../a/{one}"} for one in MANY],
        [{"path": f"/tmp/a..b/{one}"} for one in MANY],
        [{"path": f"/{one}"} for one in MANY],
        [{"path": f"~/{one}"} for one in MANY],
        [{"path": f"C:/{one}"} for one in MANY],
        [{"path": f"./{one}"} for one in MANY],
        [{"path": f"/tmp/a/{'x/' * 40}{one}"} for one in MANY],
        [{"url": f"https://me@h.example/{one}"} for one in MANY],
        [{"url": f"https://h.example/a?b={one}"} for one in MANY],
        [{"url": f"file:///etc/{one}"} for one in MANY],
        [{"data": f"data:text/plain,{one}"} for one in MANY],
    ],
    ids=lambda many: str(many[0])[:40],
)
def test_indescribable_arguments_give_no_rule(arguments: list[dict[str, Any]]) -> None:
    assert suggest_rules(make_decisions(arguments)) == []


def test_secret_argument_names_give_no_rule() -> None:
    assert (
        suggest_rules([replace(make_decision_record(), arguments=b'{"key":"color"}') for _ in MANY])
        == []
    )


def test_few_values_are_listed() -> None:
    [rule] = suggest_rules(make_decisions({"path": f"note-{one % 5}.md"} for one in MANY))
    assert covers(rule, {"path": "note-0.md"})
    for other in ("note-5.md", "/etc/passwd", "../note-0.md"):
        assert covers(rule, {"path": other}) is False


def test_prose_argument_is_open() -> None:
    [rule] = suggest_rules(make_decisions({"message": f"{one} people came today."} for one in MANY))
    assert rule.open == ["message"]
    assert covers(rule, {"message": "anything at all; $(id)"})
    assert covers(rule, {}) is False
    assert covers(rule, {"message": {"a": 1}}) is False


# -- what is hidden

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
SECRETS = [
    f"The token is {TOKEN}.",
    f"{'We met some people today. ' * 60}The token is {TOKEN}.",
    "Please take password=hunter2-hunter2 for this.",
    "We used --api-key hunter2-hunter2 for this.",
    "See https://ada:hunter2@h.example/ for more.",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_rejections_of_masked_values_are_exceptions(secret: str) -> None:
    said = make_decisions({"content": f"We met {one} people today."} for one in range(36))
    [rule] = suggest_rules(said)
    assert rule.open == ["content"]
    then = said[13].time
    assert (
        suggest_rules(said + make_decisions([{"content": secret}] * 10, "refuse", time=then)) == []
    )
    # One may be too few to speak against it, and is told of.
    [found] = suggest(
        [*said, make_decision_record({"content": secret}, "refuse", time=then)], SETTINGS
    )
    assert (found.evidence.agreed, found.evidence.decided) == (36, 37)
    assert (found.evidence.unjudged, found.evidence.doubtful) == (1, 1)
    assert found.evidence.last_exception is not None
    assert (
        "1 cannot be judged from the stored arguments, 1 of them are exceptions"
        in found.rule.evidence
    )
    # What else was refused is about something else.
    elsewhere = make_decisions([{"content": secret, "force": True}] * 10, "refuse")
    assert [one.open for one in suggest_rules(said + elsewhere)] == [["content"]]


def test_approvals_of_masked_values_are_not_counted() -> None:
    said = make_decisions({"content": f"We met {one} people today."} for one in range(36))
    [found] = suggest([*said, *make_decisions([{"content": SECRETS[0]}] * 2)], SETTINGS)
    assert (found.evidence.agreed, found.evidence.decided) == (36, 36)
    assert (found.evidence.unjudged, found.evidence.doubtful) == (2, 0)
    assert found.rule.evidence.endswith("; 2 cannot be judged from the stored arguments")


# -- what looks like a path

FOLDERS = ["/srv/a/", "./notes/", "~/notes/", "C:/docs/", "https://h.example:8080/v1/", "notes/"]
HOSTILE = [
    "; rm -rf /",
    ";rm",
    "x | sh",
    "x|sh",
    "$(id)",
    "$HOME",
    "`id`",
    "x&y",
    "x>y",
    "../x",
    "..",
    ".\t./x",
    ".\n./x",
    ".\r./x",
    "x\n",
    "%2e%2e/x",
    "..%2fx",
    "..\\x",
    "\\x",
    "x?u=http://evil",
    "x#y",
    "\u2044etc",
    "\u2215etc",
    "\uff0fetc",
    "\uff0e\uff0e/x",
    "\u2024\u2024/x",
    "\u202ex",
    "x\u200b",
    "//evil.example/x",
    "/x",
    "~/x",
    "*",
    "'x'",
    '"x"',
    "",
    ".ssh/authorized_keys",
    "x y",
    "x@y",
    "{a,b}",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_rule_covers_only_plain_names(folder: str) -> None:
    [rule] = suggest_rules(make_decisions({"path": f"{folder}{one}.md"} for one in MANY))
    assert covers(rule, {"path": f"{folder}new/er_-1.tar.gz"})
    assert [one for one in HOSTILE if covers(rule, {"path": folder + one}) is not False] == []
    assert covers(rule, {"path": f"{folder[:-1]}x/a"}) is False
    assert covers(rule, {"path": f" {folder}a"}) is False


def test_folder_rule_allows_frequent_characters() -> None:
    [rule] = suggest_rules(make_decisions({"path": f"/srv/a/.x/é@{one}"} for one in MANY))
    assert covers(rule, {"path": "/srv/a/.x/éé@"})
    assert covers(rule, {"path": "/srv/a/.x/.y"}) is False
    assert covers(rule, {"path": "/srv/a/.x/a=b"}) is False
    odd = make_decisions({"path": f"/srv/a/{one}=x"} for one in range(2))
    [rule] = suggest_rules(make_decisions({"path": f"/srv/a/{one}"} for one in MANY) + odd)
    assert covers(rule, {"path": "/srv/a/1=x"}) is False


@given(st.sampled_from(FOLDERS), st.text(max_size=12) | st.sampled_from(HOSTILE))
def test_read_path_returns_only_plain_paths(folder: str, rest: str) -> None:
    path = read_path(folder + rest)
    if path is not None:
        assert path.prefix + "/".join(path.names) == folder + rest
        assert not {"", ".", ".."} & set(path.names)
        assert not set(folder + rest) & set(" \t\r\n\\%$`;|&<>?#*'\"(){}[]!^")
        assert all(path.text.startswith(one) and one.endswith("/") for one in path.folders())


# -- what goes together


def test_combines_only_values_seen_together() -> None:
    history = make_decisions({"src": f"/srv/prod/{one}", "dst": f"/backup/{one}"} for one in MANY)
    history += make_decisions(
        {"src": f"/home/a/{one}", "dst": f"/public/www/{one}"} for one in MANY
    )
    [rule] = suggest_rules(history)
    assert covers(rule, {"src": "/srv/prod/x", "dst": "/backup/x"})
    assert covers(rule, {"src": "/home/a/x", "dst": "/public/www/x"})
    assert covers(rule, {"src": "/srv/prod/x", "dst": "/public/www/x"}) is False
    assert covers(rule, {"src": "/home/a/x", "dst": "/backup/x"}) is False


def test_independent_values_are_described_simply() -> None:
    history = make_decisions(
        {"env": "a" if one % 2 else "b", "n": one % 4 // 2} for one in range(40)
    )
    [found] = suggest(history, SETTINGS)
    assert "either" not in found.description
    assert '"env" is one of "a", "b", and "n" is one of 0, 1' in found.description


def test_flag_applies_only_with_observed_values() -> None:
    history = make_decisions({"path": f"/srv/a/{one}", "force": True} for one in MANY)
    history += make_decisions({"path": f"/srv/b/{one}"} for one in MANY)
    [rule] = suggest_rules(history)
    assert covers(rule, {"path": "/srv/a/x", "force": True})
    assert covers(rule, {"path": "/srv/b/x"})
    assert covers(rule, {"path": "/srv/b/x", "force": True}) is False
    assert covers(rule, {"path": "/srv/a/x"}) is False


def test_range_applies_only_with_observed_values() -> None:
    history = make_decisions({"to_env": "test", "n": 1_000 + one} for one in MANY)
    history += make_decisions({"to_env": "prod", "n": one} for one in MANY)
    [rule] = suggest_rules(history)
    assert covers(rule, {"to_env": "test", "n": 1_010})
    assert covers(rule, {"to_env": "prod", "n": 10})
    assert covers(rule, {"to_env": "prod", "n": 1_010}) is False


def test_sibling_folders_do_not_open_parent() -> None:
    [rule] = suggest_rules(
        make_decisions({"path": f"/home/{'ab'[one % 2]}/notes/{one}.md"} for one in MANY)
    )
    assert covers(rule, {"path": "/home/a/notes/new.md"})
    assert covers(rule, {"path": "/home/b/notes/new.md"})
    for other in ("/home/c/notes/new.md", "/home/new.md", "/home/a/keys"):
        assert covers(rule, {"path": other}) is False


def test_many_folders_are_described_by_parent() -> None:
    [rule] = suggest_rules(
        make_decisions({"path": f"/srv/{one % 8}/{one}.md"} for one in range(40))
    )
    assert covers(rule, {"path": "/srv/9/new.md"})


def test_folders_of_other_caller_are_not_shared() -> None:
    many = [
        make_decision_record({"path": f"/srv/{one % 8}/{one}.md"}, caller="robot")
        for one in range(40)
    ]
    few = [make_decision_record({"path": f"/srv/{'ab'[one % 2]}/{one}.md"}) for one in range(40)]
    found = suggest_rules([*many, *few])
    for path, agent, robot in (
        ("/srv/a/new.md", True, True),
        ("/srv/3/new.md", False, True),
        ("/srv/9/new.md", False, True),
    ):
        assert any(covers(rule, {"path": path}) for rule in found) is agent
        assert any(covers(rule, {"path": path}, caller="robot") for rule in found) is robot


@pytest.mark.parametrize("odd", [[10**6], [10**6] * 3, [-(10**6)], [4e5, 10**6]])
def test_outlier_does_not_extend_range(odd: list[float]) -> None:
    usual = [{"amount": one % 12 + 1} for one in range(40)]
    [rule] = suggest_rules(make_decisions(usual) + make_decisions({"amount": one} for one in odd))
    assert covers(rule, {"amount": 12})
    for other in (13, 0, 5_000, 399_999, 500_000, -5_000, 999_999):
        assert covers(rule, {"amount": other}) is False


@pytest.mark.parametrize(
    "name",
    ["id", "user_id", "orderId", "port", "account", "PID", "userid", "issue", "gpio_pin", "relay"],
)
def test_identifiers_give_no_range(name: str) -> None:
    assert suggest_rules(make_decisions({name: 1_000 + 2 * one} for one in MANY)) == []
    [rule] = suggest_rules(make_decisions({name: 1_000 + 2 * (one % 4)} for one in MANY))
    assert covers(rule, {name: 1_002})
    assert covers(rule, {name: 1_001}) is False


def test_gap_separates_ranges() -> None:
    small, large = range(1, 13), range(1_000, 1_012)
    [rule] = suggest_rules(make_decisions({"amount": one} for one in (*small, *large)))
    for seen in (1, 12, 1_000, 1_011):
        assert covers(rule, {"amount": seen})
    for other in (13, 500, 999, 1_012):
        assert covers(rule, {"amount": other}) is False


def test_range_of_other_caller_is_not_shared() -> None:
    all_over = [make_decision_record({"amount": one}, caller="robot") for one in range(1, 101)]
    ends = [*range(1, 11), *range(91, 101)]
    found = suggest_rules([*all_over, *make_decisions({"amount": one} for one in ends)])
    assert any(covers(rule, {"amount": 50}, caller="robot") for rule in found)
    assert any(covers(rule, {"amount": 95}) for rule in found)
    assert not any(covers(rule, {"amount": 50}) for rule in found)


def test_values_of_other_caller_are_not_shared() -> None:
    history = make_decisions(({"path": f"/srv/prod/{one}"} for one in MANY), caller="alice")
    history += make_decisions(({"path": f"/tmp/m/{one}"} for one in MANY), caller="bob")
    history += make_decisions(({"path": f"/srv/dev/{one}"} for one in MANY), caller="carol")
    history += make_decisions(({"n": one} for one in MANY), caller="alice", tool="files.pay")
    history += make_decisions(({"n": one * 9} for one in MANY), caller="bob", tool="files.pay")
    found = suggest_rules(history)
    for who, other in (
        ("alice", "/tmp/m/x"),
        ("bob", "/srv/prod/x"),
        ("carol", "/srv/prod/x"),
        ("alice", "/srv/dev/x"),
    ):
        assert not any(covers(one, {"path": other}, caller=who) for one in found)
    assert any(covers(one, {"path": "/tmp/m/x"}, caller="bob") for one in found)
    pays = {"tool": "files.pay"}
    assert not any(covers(one, {"n": 200}, caller="alice", **pays) for one in found)
    assert not any(covers(one, {"n": 1}, caller="stranger", **pays) for one in found)


# -- whatever the past was


def expand_templates(templates: list[tuple[str, dict[str, Any], int]]) -> list[HumanDecision]:
    """Return decisions of each template with a number in place of each `%`."""
    return [
        make_decision_record(
            {
                name: value.replace("%", str(number)) if isinstance(value, str) else value
                for name, value in arguments.items()
            },
            caller=caller,
        )
        for caller, arguments, times in templates
        for number in range(times)
    ]


TAUGHT = st.lists(
    st.tuples(
        st.sampled_from(["agent", "robot"]),
        st.dictionaries(
            st.sampled_from(["path", "n", "force", "more"]),
            st.sampled_from(
                ["/a/%", "/a/b/%", "/c/%", "/c/x", "x%", "we met % people", "x", 3, 40]
            ),
            max_size=3,
        ),
        st.integers(2, 9),
    ),
    min_size=1,
    max_size=6,
).map(expand_templates)
PROBES: Any = st.dictionaries(
    st.sampled_from(["path", "n", "force", "token", 'a"]\n', "more"]),
    st.builds(str.__add__, st.sampled_from(["/a/", "/a/b/", "/c/", ""]), st.sampled_from(HOSTILE))
    | st.sampled_from(
        ["/a/x", "/a/b/x", "/c/x", "/c/1", "x", "x1", "", None, True, [1], {}, 7, 7.5, -9, 10**6]
    )
    | st.integers(-5, 50),
    max_size=4,
)


def is_similar(name: str, value: Any, seen: Any) -> bool:
    """Return whether a value is equal to an observed value, in its folder, or a number."""
    if type(value) is type(seen) and value == seen:
        return True
    if isinstance(value, int | float) and isinstance(seen, int | float):
        return not isinstance(value, bool) and not isinstance(seen, bool)
    if not (isinstance(value, str) and isinstance(seen, str)):
        return False
    now, then = read_path(value), read_path(seen)
    return bool(now and then and now.folders() and now.folders()[:1] == then.folders()[:1])


@settings(deadline=None)
@given(histories() | TAUGHT, st.lists(PROBES, max_size=20))
def test_rule_covers_only_similar_calls(
    history: list[HumanDecision], probes: list[dict[str, Any]]
) -> None:
    bar = AutomationConfig(decisions=4, agreement=0.8)
    for found in suggest(history, bar, irreversible=True):
        rule = found.rule
        assert 0 < len(rule.callers) <= 20
        assert not any(is_secret_key(name) for name in rule.open)
        compiled = CompiledRule(rule)
        decided = [
            (one.caller, case.arguments or {})
            for one in history
            if one.tool in rule.tools and one.verdict == VERDICTS[rule.then]
            for case in [read_case(one)]
        ]
        probes = [*probes, *(arguments for _, arguments in decided)]
        for caller in {*rule.callers, "stranger"}:
            for probe in probes:
                about = {"args": probe, "tool": rule.tools[0], "caller": caller, "effect": "x"}
                if not (
                    compiled.matches_call(rule.tools[0], caller, "additive")
                    and compiled.is_true_for(about)
                ):
                    continue
                # Somebody decided about a call of the same caller that was like it in all of its
                # arguments at once.
                assert any(
                    who == caller
                    and then.keys() == probe.keys()
                    and all(
                        name in rule.open or is_similar(name, probe[name], then[name])
                        for name in probe
                    )
                    for who, then in decided
                ), (rule.when, probe)
                for name, value in probe.items():
                    numbers = [
                        then[name] for _, then in decided if isinstance(then.get(name), int | float)
                    ]
                    if isinstance(value, int | float) and not isinstance(value, bool):
                        assert min(numbers) <= value <= max(numbers)


# -- how long it takes


def test_work_grows_linearly_with_folders() -> None:
    def taken(many: int) -> int:
        history = make_decisions(
            {"path": f"/d{one}/x/{one}", "content": "x"} for one in range(many)
        )
        found: list[object] = []
        work = count_lines_run(lambda: found.extend(suggest(history, AutomationConfig())))
        assert found == []
        return work

    taken(10)
    # Twice as many: well below the four times that a look at each for each would take.
    assert taken(400) < 2.5 * taken(200)
