"""Detection of prose: text for people, not for a machine to run, look up or open. Pure.

Only prose is ever left open in a rule, so every doubtful text counts as something else. A text must
show that it is a sentence, and nothing in it may look like a command, a query, code, a path or an
address. A false negative costs one more question to an operator.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_MAX_WORD_LENGTH: Final = 64
_MACHINE_SYNTAX: Final = re.compile(
    r"""
      \\ | ` | [{}] | :// | && | \|
    | \$[A-Za-z_({]                                 # what a shell fills in
    | (?:^|\s)--?[A-Za-z]                           # options
    | (?:^|\s)(?:~|\.{1,2})?/[\w.~*-]               # paths
    | [A-Za-z_]/[\w.-]+/ | /[\w.-]+/[\w.-]*[A-Za-z] | \b[A-Za-z]:/
    | (?:^|[\s/])\*\.\w | /\*
    | \S[ \t]+[<>]{1,2}[ \t]*[^\s\d] | \d> | <[A-Za-z/!?]
    | \w=\S | [=!<>]= | => | ->
    | ;[ \t]*(?:$|\n|\S*;) | ;\S
    | \w\(\) | \w\.\w+\( | \w\([^()\s]*["',=]       # calls of functions
    | ^\s*[\[(@%!\#]\S*\s*$ | ^\#! | ^\s*@\w+\(
    """,
    re.VERBOSE | re.MULTILINE,
)
"""Syntax of commands, queries, code, paths and addresses that is rare in sentences."""
_QUERY: Final = re.compile(
    r"^\s*(?:select\b.*\bfrom\b|insert\s+into\b|delete\s+from\b|update\b.*\bset\b|merge\s+into\b"
    r"|with\s+\w+\s+as\s*\(|(?:create|drop|alter|truncate|grant|revoke)\s+(?:or\s+replace\s+)?"
    r"(?:table|view|index|user|role|database|schema|function|procedure|trigger|all|select|temp\w*)\b"
    r"|match\s*\(|(?:get|put|post|patch|head)\s+\S*/)",
    re.IGNORECASE | re.DOTALL,
)
_SETTING_LINE: Final = re.compile(r"^[ \t]*(?:-[ \t]+)?[\w.\"'-]+[ \t]*[:=](?:[ \t]|$)")
"""A line of a settings file."""
_CODE_LINE: Final = re.compile(
    r"^[ \t]*(?:import|from|def|class|function|const|let|var|public|private|static|package|using"
    r"|return|#include|if|elif|else|for|while|try|except|do|done|fi|esac|then|end)\b.*[:;)(\]]?$"
)
_PROGRAM_NAMES: Final = """
ansible ansible-playbook apk apt apt-get aptitude aria2c awk aws az base64 bash brew bun bundle
bzip2 cargo cd certbot chgrp chmod chown chroot clang cmake composer conda cp cron crontab curl dash
dd deno df diff dig diskpart dism dmesg dnf docker docker-compose dotnet dpkg du echo ed egrep emacs
env eval export fdisk ffmpeg fish flatpak fsck ftp gcc gcloud gdb gem getent git gpg gradle grep
groupadd gunzip gzip helm heroku htop iconv id ifconfig insmod ip iptables java javac journalctl jq
kill killall ksh kubectl launchctl ldapsearch less ln losetup ls lsblk lsof lvm md5sum mkdir mkfifo
mkfs mknod mktemp modprobe mongo mongosh mosquitto_pub msiexec mv mvn mysql mysqldump nano nc ncat
netsh netstat nginx nmap node nohup npm npx nslookup ollama openssl pacman parted passwd perl
pg_dump pgrep php ping pip pip3 pipx pkill pm2 pnpm podman poweroff powershell printenv printf ps
psql pwd pwsh python python2 python3 rclone readlink reboot redis-cli reg regsvr32 renice rm rmdir
rmmod rsync ruby runas rundll32 rustc sc schtasks scp screen sed setfacl sftp sh sha256sum shred
shutdown socat sqlite3 ssh ssh-keygen stat strace su sudo svn sysctl systemctl tail tar taskkill
tcpdump tee telnet terraform tmux traceroute truncate tsc ufw umount unlink unset unzip useradd
userdel usermod uv vagrant vi vim visudo wc wget whoami winget wmic xargs xz yarn yum zcat zip zsh
zypper
"""
_COMMAND_VERBS: Final = """
add apply at begin build cat clear clone commit compile config configure connect copy create cut
date del delete deploy destroy disable drain drop enable erase exec execute export fetch file find
flush flushall flushdb force format get grant halt head host import incr init insert install invoke
join kill last launch let link list load lock log login logout make man merge migrate mount move net
open patch play post print prune publish pull purge push put query read reload remove rename replace
reset resize restart restore resume revert revoke rollback route run save scale scan search select
send service set show sleep sort source split start stop suspend switch sync test time top touch
transfer trigger truncate type uninstall unlock unmount update upgrade upload use wait watch wipe
write
"""
"""Words at the beginning of commands that may also begin sentences."""
_FUNCTION_WORDS: Final = """
an and are as be because been but by can could did do does for from had has have he her his if in
into is it its me my no nor not of on or our she should so than that the their them then there these
they this those to until us was we were what when which who will with would you your
aber als am auch auf aus bei bis da das dass dem den der des die du ein eine einen einer es für hat
ich ihr im ist kein mit nach nicht noch nur oder sich sie sind so über um und uns von war wenn wie
wir wird zu zum zur
au aux avec ce ces dans de elle en est et il ils je la le les leur mais ne nous ou où par pas pour
que qui sa se ses sont sur un une vous
al como con del el ella está esta este las lo los más mi muy nos para pero por si sin su sus una ya
che dei della di gli io nel non per più sono ao com dos em eu foi mas na não os sem seu são sua um
aan bij dat dit een er het hij ik met naar niet om ook op te tot uit van voor wij worden zijn
"""
"""Frequent function words of several languages, which identify sentences."""
_PROGRAMS: Final = frozenset(_PROGRAM_NAMES.split())
_COMMAND_WORDS: Final = _PROGRAMS | frozenset(_COMMAND_VERBS.split())
_FUNCTION_WORD_SET: Final = frozenset(_FUNCTION_WORDS.split())
_SENTENCE_ENDS: Final = re.compile(r"[A-Za-z\u00c0-\uffff)\"'][.!?\u2026](?:[\"')\s]|$)|[a-z],\s")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def is_machine_text(text: str) -> bool:
    """Return whether a text looks like something that is run, looked up or opened."""
    # Compatibility characters may be read as the characters that NFKC gives.
    text = unicodedata.normalize("NFKC", text)
    if _MACHINE_SYNTAX.search(text) or _QUERY.match(text):
        return True
    lines = [line for line in text.splitlines() if line.strip()]
    if any(_is_command(line.split()) for line in lines):
        return True
    config_lines = sum(bool(_SETTING_LINE.match(line) or _CODE_LINE.match(line)) for line in lines)
    return len(lines) > 1 and config_lines * 2 >= len(lines)


def _is_command(words: list[str]) -> bool:
    """Return whether a line begins like a command."""
    first = words[0].removesuffix(".exe")
    if first in _PROGRAMS:
        return True
    order = first.lower().partition("-")[0]
    return order in _COMMAND_WORDS and not _SENTENCE_ENDS.search(" ".join(words))


def is_prose(text: str) -> bool:
    """Return whether a text has several words and signs of a sentence."""
    words = text.split()
    if len(words) < 2 or max(map(len, words)) > _MAX_WORD_LENGTH or is_machine_text(text):
        return False
    return words[0][0].isupper() or _has_sentence_signs(text)


def _has_sentence_signs(text: str) -> bool:
    """Return whether a text has function words, ends of sentences, or non-ASCII words, which no
    program has as its name."""
    if _SENTENCE_ENDS.search(text):
        return True
    words = _WORD.findall(text.lower())
    return any(word in _FUNCTION_WORD_SET or not word.isascii() for word in words)
