"""Files of variables: any text is read, and what was read is read again from what it makes."""

from __future__ import annotations

from interlock.drivers.vault import read_env_file

SEEDS = [
    b"PLAIN=value\nexport EXPORTED=yes\n SPACED = around \n",
    b"# a comment\nDOUBLE=\"two words\"\nSINGLE='it # stays'\r\n",
    b'URL=postgres://u:p@h/db?a=b\nEMPTY=\nHALF="open\nTWICE=1\nTWICE=2',
    b"9DIGIT=no\n=nothing\nexport =x\nexport\tTAB=1\n\x00=\x00",
]


def TestOneInput(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    values = read_env_file(text)
    assert len(values) <= text.count("=")
    for name, value in values.items():
        assert name.isidentifier()
        assert name.isascii()
        assert value in text
        assert "\n" not in value
    again = "".join(f'{name}="{value}"\n' for name, value in values.items())
    assert read_env_file(again) == values
