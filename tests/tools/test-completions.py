#!/usr/bin/env python3
"""The completions of the programs: each has every option and command of `--help`, bash, zsh and fish
load them, and offer what begins with what was typed.

usage: test-completions.py DIRECTORY PROGRAM..."""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what)
        failed = True


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def usage(program):
    """The options of --help, the first words of its commands, and what follows them."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    # Lines of options and commands are indented; sentences, which may name options of others, are
    # not.
    lines = [line for line in text.split("\n") if line.startswith(" ")]
    options = {option for line in lines for option in OPTION.findall(re.split(r"(?<=\S)  +", line)[0])}
    commands = {}
    for line in lines:
        match = re.match(r"  ([a-z]+)((?: [a-z]+)*)", line)
        if match:
            commands.setdefault(match[1], set()).update(match[2].split())
    return options, commands


def check_text(directory, name, options, commands):
    words = {
        "bash": set(re.findall(r"[\w-]+", read(os.path.join(directory, name)))),
        "zsh": set(re.findall(r"[\w-]+", re.sub(r"\)-", ") -", read(os.path.join(directory, "_" + name))))),
    }
    fish = read(os.path.join(directory, name + ".fish"))
    words["fish"] = set(re.findall(r" -a '?([^']*?)'? -d| -a '([^']*)'", fish) and
                        re.findall(r"\w+", " ".join(re.findall(r" -a ('[^']*'|\w+)", fish))))
    words["fish"] |= {"--" + name for name in re.findall(r" -l ([\w-]+)", fish)}
    words["fish"] |= {"-" + name for name in re.findall(r" -s (\w)", fish)}
    wanted = options | set(commands) | {word for after in commands.values() for word in after}
    for shell, found in words.items():
        check(wanted <= found, f"{name}: {shell} has no {sorted(wanted - found)}")


class Bash:
    def __init__(self, directory):
        self.directory = directory

    def complete(self, *words):
        name = words[0]
        script = (f"source {os.path.join(self.directory, name)}; COMP_WORDS=(\"$@\"); "
                  "COMP_CWORD=$(($# - 1)); compopt() { :; }; "
                  f"complete -p {name} >/dev/null; _{name}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        done = subprocess.run(["bash", "-euc", script, "bash", *words], capture_output=True, text=True)
        check(done.returncode == 0 and not done.stderr, f"bash: {name}: {done.stderr}")
        return set(done.stdout.split())


class Fish:
    def __init__(self, directory):
        self.directory = directory

    def complete(self, *words):
        script = os.path.join(self.directory, words[0] + ".fish")
        with tempfile.TemporaryDirectory(prefix="fad-fish-") as home:
            done = subprocess.run(["fish", "--no-config", "-c", f"source {script}; complete -C '{' '.join(words)}'"],
                                  capture_output=True, text=True, cwd=home, env={**os.environ, "HOME": home})
        check(done.returncode == 0 and not done.stderr, f"fish: {words[0]}: {done.stderr}")
        return {line.split("\t")[0] for line in done.stdout.split("\n") if line}


class Zsh:
    """Completes on a terminal, as zsh does nothing without one: types a Tab, and reads what is offered."""

    def __init__(self, directory):
        self.directory = directory
        self.home = tempfile.TemporaryDirectory(prefix="fad-zsh-")
        pid, self.terminal = pty.fork()
        if not pid:
            os.chdir(self.home.name)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "HOME": self.home.name, "TERM": "dumb"})
        self.run("PROMPT='' RPROMPT='' PROMPT2='' LISTMAX=10000; unsetopt zle_bracketed_paste beep list_beep; "
                 f"fpath=({directory} $fpath); autoload -Uz compinit; compinit -u -D; "
                 "zstyle ':completion:*' list-prompt ''; zstyle ':completion:*:messages' format '%d'; "
                 "bindkey '^I' list-choices")

    def read_until(self, mark, seconds=20):
        end, text = time.monotonic() + seconds, ""
        while mark not in text:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise RuntimeError(f"zsh did not say {mark!r}: {text!r}")
            text += os.read(self.terminal, 65536).decode(errors="replace")
        return text

    def run(self, command):
        os.write(self.terminal, f"{command}; print -r -- D''ONE\n".encode())
        return self.read_until("DONE\r\n")

    def complete(self, *words):
        # zsh lists what it offers; ^U clears the line.
        os.write(self.terminal, (" ".join(words) + "\t").encode())
        time.sleep(0.3)
        os.write(self.terminal, b"\x15print -r -- D''ONE\n")
        text = self.read_until("DONE\r\n")
        return set(re.findall(r"(?<![\w-])-{0,2}[a-z][\w-]*", text.split("\n", 1)[-1]))


def main():
    directory, *programs = sys.argv[1:]
    shells = {"bash": Bash, "fish": Fish, "zsh": Zsh}
    shells = {name: shell(directory) for name, shell in shells.items() if shutil.which(name)}
    check("bash" in shells, "there is no bash")
    print("shells:", ", ".join(sorted(shells)))
    for program in programs:
        name = os.path.basename(program)
        options, commands = usage(program)
        check(len(options) > 3, f"the options of {name} are not found")
        check_text(directory, name, options, commands)
        for shell, completer in shells.items():
            found = completer.complete(name, "--ver")
            check("--version" in found and "--help" not in found, f"{shell}: {name} --ver: {found}")
            if commands:
                found = completer.complete(name, "")
                check(set(commands) <= found, f"{shell}: {name}: {sorted(set(commands) - found)} are missing")
    for shell, completer in shells.items():
        found = completer.complete("factl", "rm", "")
        check({"cache", "sequence"} <= found and "status" not in found, f"{shell}: factl rm: {found}")
        found = completer.complete("factl", "status", "--")
        check("--json" in found and "--no-wait" not in found, f"{shell}: factl status --: {found}")
        found = completer.complete("fad", "--log-level", "")
        check({"error", "warning", "info", "debug"} <= found, f"{shell}: fad --log-level: {found}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
