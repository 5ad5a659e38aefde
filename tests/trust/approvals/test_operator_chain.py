"""The chain of operators: any changed, added, removed or moved entry is detected."""

from __future__ import annotations

import functools
import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.trust.operators.chain import (
    Chain,
    Enrolment,
    decode_entry,
    encode_entry,
    verify_chain,
)
from tests.trust.approvals.operator_keys import Operator, PasskeyOperator

Rows = list[tuple[bytes, str]]
OPERATORS = [Operator("ada"), PasskeyOperator("bea"), Operator("cleo"), Operator("dora")]
UNENROLLED = Operator("mallory")


@functools.cache
def history() -> tuple[tuple[bytes, str], ...]:
    """Ada enrols, then bea by ada, cleo by bea's passkey, ada is removed by cleo, dora by cleo."""
    ada, bea, cleo, dora = OPERATORS
    steps = [
        ([ada.enrolled], [], None),  # type: ignore[attr-defined]
        ([bea.enrolled], [], ada),  # type: ignore[attr-defined]
        ([cleo.enrolled], [], bea),  # type: ignore[attr-defined]
        ([], [ada.enrolled.id], cleo),  # type: ignore[attr-defined]
        ([dora.enrolled], [], cleo),  # type: ignore[attr-defined]
    ]
    rows: Rows = []
    for number, (enrol, remove, signer) in enumerate(steps):
        draft = verify_chain(rows).draft(time=float(number), enrol=enrol, remove=remove)
        rows.append((draft.entry, "" if signer is None else signer.sign(draft)))  # type: ignore[attr-defined]
    return tuple(rows)


def names(chain: Chain) -> list[str]:
    return [operator.name for operator in chain.operators]


def test_verifies_chain_made_by_operators() -> None:
    chain = verify_chain(history())
    assert (names(chain), chain.problem) == (["bea", "cleo", "dora"], "")
    for number in range(len(history())):
        assert chain.contains(verify_chain(history()[:number]).head)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_detects_any_change(data: st.DataObject) -> None:
    whole = verify_chain(history())
    rows = list(history())
    place = data.draw(st.integers(0, len(rows) - 1))
    how = data.draw(st.sampled_from(["byte", "proof", "drop", "swap", "repeat", "insert", "cut"]))
    entry, proof = rows[place]
    if how == "byte":
        at = data.draw(st.integers(0, len(entry) - 1))
        new = data.draw(st.integers(0, 255).filter(lambda one: one != entry[at]))
        rows[place] = (entry[:at] + bytes([new]) + entry[at + 1 :], proof)
    elif how == "proof":
        at = data.draw(st.integers(0, max(0, len(proof) - 1)))
        rows[place] = (entry, proof[:at] + data.draw(st.text(min_size=1, max_size=3)) + proof[at:])
    elif how == "drop":
        del rows[place]
    elif how == "swap":
        other = data.draw(st.integers(0, len(rows) - 1).filter(lambda one: one != place))
        rows[place], rows[other] = rows[other], rows[place]
    elif how == "repeat":
        rows.insert(data.draw(st.integers(0, len(rows))), rows[place])
    elif how == "insert":
        before = verify_chain(rows[:place])
        draft = before.draft(time=1.0, enrol=[UNENROLLED.enrolled])
        signer = data.draw(st.sampled_from(["", "stranger", "other"]))
        made = {"": "", "stranger": UNENROLLED.sign(draft), "other": rows[-1][1]}[signer]
        rows.insert(place, (draft.entry, made))
    else:
        rows = rows[:place]
    chain = verify_chain(rows, known_head=whole.head)
    # Either it is not the chain that was known, or what was added does not count.
    assert not chain.contains(whole.head) or (
        bool(chain.problem) and chain.operators == whole.operators
    )
    # Without knowing the end: nobody gets in but as the very first, and nobody who was removed
    # comes back without a cut.
    if rows[:1] == list(history()[:1]):
        assert "mallory" not in names(chain)


@pytest.mark.parametrize("change", [{"aud": "x"}, {"jti": "x"}, {"args_sha256": "x"},
                                    {"decision": "refuse"}])  # fmt: skip
def test_rejects_signature_over_other_data(change: dict[str, str]) -> None:
    ada = OPERATORS[0]
    assert isinstance(ada, Operator)
    rows = list(history()[:1])
    draft = verify_chain(rows).draft(time=1.0, enrol=[UNENROLLED.enrolled])
    good = verify_chain([*rows, (draft.entry, ada.sign(draft))])
    assert names(good) == ["ada", "mallory"]
    bad = verify_chain([*rows, (draft.entry, ada.sign(draft, **change))])
    assert (names(bad), bool(bad.problem)) == (["ada"], True)


def test_rejects_signature_of_removed_operator() -> None:
    ada = OPERATORS[0]
    draft = verify_chain(history()).draft(time=9.0, enrol=[UNENROLLED.enrolled])
    chain = verify_chain([*history(), (draft.entry, ada.sign(draft))])  # type: ignore[attr-defined]
    assert (names(chain), bool(chain.problem)) == (["bea", "cleo", "dora"], True)


def test_rejects_signature_made_for_other_chain() -> None:
    ada = Operator("ada")
    first = Chain().draft(time=0.0, enrol=[ada.enrolled])
    second = Chain().draft(time=1.0, enrol=[ada.enrolled])
    draft = verify_chain([(first.entry, "")]).draft(time=2.0, enrol=[UNENROLLED.enrolled])
    proof = ada.sign(draft)
    assert len(verify_chain([(first.entry, ""), (draft.entry, proof)]).links) == 2
    assert len(verify_chain([(second.entry, ""), (draft.entry, proof)]).links) == 1


def test_rejects_entry_without_its_signed_predecessor() -> None:
    ada, bea, cleo = Operator("ada"), Operator("bea"), Operator("cleo")
    rows: Rows = [(Chain().draft(time=0.0, enrol=[ada.enrolled]).entry, "")]
    seen, other = (
        verify_chain(rows).draft(time=1.0, enrol=[item.enrolled]) for item in (bea, cleo)
    )
    seen_row, other_row = (seen.entry, ada.sign(seen)), (other.entry, ada.sign(other))
    last = verify_chain([*rows, seen_row]).draft(time=2.0, enrol=[UNENROLLED.enrolled])
    last_row = (last.entry, ada.sign(last))
    assert names(verify_chain([*rows, seen_row, last_row])) == ["ada", "bea", "mallory"]
    assert names(verify_chain([*rows, other_row, last_row])) == ["ada", "cleo"]


def test_limited_operator_cannot_enrol_wider_permissions() -> None:
    chief, clerk = Operator("chief"), Operator("clerk", ("shop.*", "mail.*"))
    first = Chain().draft(time=0.0, enrol=[chief.enrolled, clerk.enrolled])
    rows = [(first.entry, "")]
    allowed = {
        ("clerk", ("shop.*",)): True,
        ("clerk", ("shop.*", "mail.*")): True,
        ("clerk", ()): False,
        ("clerk", ("*",)): False,
        ("another", ("shop.*",)): False,
    }
    for (name, tools), fine in allowed.items():
        draft = verify_chain(rows).draft(time=1.0, enrol=[Operator(name, tools).enrolled])
        chain = verify_chain([*rows, (draft.entry, clerk.sign(draft))])
        assert (len(chain.links) == 2) is fine, (name, tools)
    for gone, fine in ((chief, False), (clerk, True)):
        draft = verify_chain(rows).draft(time=1.0, remove=[gone.enrolled.id])
        assert (len(verify_chain([*rows, (draft.entry, clerk.sign(draft))]).links) == 2) is fine


def test_recovery_requires_recovery_check() -> None:
    rows = list(history()[:1])
    draft = verify_chain(rows).draft(time=1.0, enrol=[UNENROLLED.enrolled], recovery=True)
    for proof in ("", "root", "delay:00", UNENROLLED.sign(draft)):
        assert names(verify_chain([*rows, (draft.entry, proof)])) == ["ada"]
    chain = verify_chain(
        [*rows, (draft.entry, "witness")],
        is_recovered=lambda number, digest, proof: (number, digest) == (2, draft.digest),
    )
    assert names(chain) == ["ada", "mallory"]
    # Never as the first: that is trusted on first use, or signed by a key of the config.
    first = Chain().draft(time=0.0, enrol=[UNENROLLED.enrolled], recovery=True)
    assert names(verify_chain([(first.entry, "x")], is_recovered=lambda *_: True)) == []


def test_accepts_only_canonical_entry_encoding() -> None:
    entry = history()[1][0]
    assert encode_entry(decode_entry(entry)) == entry
    assert b'"public"' in entry
    loose = json.dumps(json.loads(entry)).encode()
    assert names(verify_chain([history()[0], (loose, history()[1][1])])) == ["ada"]


def test_shuffled_chain_enrols_no_other_operator() -> None:
    rows = list(history())
    for seed in range(20):
        random.Random(seed).shuffle(rows)
        chain = verify_chain(rows)
        assert rows == list(history()) or chain.problem
        assert {operator.name for operator in chain.operators} <= {
            person.name  # type: ignore[attr-defined]
            for person in OPERATORS
        }
        assert all(isinstance(operator, Enrolment) for operator in chain.operators)


def test_unsigned_first_entry_requires_config_root() -> None:
    root, other = Operator("root"), Operator("mallory")
    enrolled = root.enrolled

    def names_of(*enrol: Enrolment, proof: str = "") -> list[str]:
        draft = Chain().draft(time=0.0, enrol=list(enrol))
        return names(verify_chain([(draft.entry, proof)], roots=[enrolled]))

    assert names_of(enrolled) == ["root"]
    # The id of the root with anything else of somebody else.
    assert names_of(msgspec.structs.replace(other.enrolled, id=enrolled.id)) == []
    assert names_of(msgspec.structs.replace(enrolled, public=other.enrolled.public)) == []
    assert names_of(msgspec.structs.replace(enrolled, name="mallory")) == []
    assert names_of(enrolled, other.enrolled) == []
    passkey = msgspec.structs.replace(PasskeyOperator("x").enrolled, id=enrolled.id)
    assert names_of(passkey) == []
    draft = Chain().draft(time=0.0, enrol=[other.enrolled])
    signed = verify_chain([(draft.entry, root.sign(draft))], roots=[enrolled])
    assert names(signed) == ["mallory"]


def test_operator_bound_to_caller_cannot_enrol_unbound_key() -> None:
    clerk = Operator("clerk", ("shop.*",))
    bound = msgspec.structs.replace(clerk.enrolled, caller="bob")
    first = Chain().draft(time=0.0, enrol=[Operator("chief").enrolled, bound])
    rows = [(first.entry, "")]
    free = Operator("clerk", ("shop.*",)).enrolled
    for item, fine in ((free, False), (msgspec.structs.replace(free, caller="bob"), True)):
        draft = verify_chain(rows).draft(time=1.0, enrol=[item])
        chain = verify_chain([*rows, (draft.entry, clerk.sign(draft))])
        assert (len(chain.links) == 2) is fine
