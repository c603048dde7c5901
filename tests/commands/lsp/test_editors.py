"""The settings of docs/editors.md in the editors themselves, without a screen; an editor that is not here skips."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.smallest import YAML

WRONG = f"{YAML}weight_decy: 0.1\nhiden_dropout: 0\ndialect: neox-2026\n"
RIGHT = WRONG.replace("decy", "decay").replace("hiden", "hidden")
#: Waits for the problems and the plan, takes the quick fix of one line and corrects the rest.
LUA = """
local function say(word, value) io.stdout:write(word .. ' ' .. tostring(value) .. '\\n') end
local function wait(test) vim.wait(60000, test, 50) end
local errors = { severity = vim.diagnostic.severity.ERROR }
wait(function() return #vim.diagnostic.get(0, errors) == 2 end)
for _, each in ipairs(vim.diagnostic.get(0, errors)) do say(each.code, each.lnum + 1) end
wait(function() local found = vim.lsp.codelens.get(0); return #found > 0 and found[1].command ~= nil end)
say('lens', vim.lsp.codelens.get(0)[1].command.title)
vim.api.nvim_win_set_cursor(0, { 8, 3 })
vim.lsp.buf.code_action({ context = { only = { 'quickfix' }, diagnostics = {} }, apply = true })
wait(function() return #vim.diagnostic.get(0, errors) == 1 end)
vim.cmd('DeepyFix')
wait(function() return #vim.diagnostic.get(0, errors) == 0 end)
vim.cmd('wqa')
"""
ELISP = """
(defun wait (test)
  (let ((n 0)) (while (and (< n 600) (not (funcall test))) (accept-process-output nil 0.1) (setq n (1+ n)))))
(defun errors ()
  (seq-filter (lambda (each) (string-match "unknown-key" (flymake-diagnostic-text each))) (flymake-diagnostics)))
(defun has (text) (save-excursion (goto-char (point-min)) (search-forward text nil t)))
(find-file "my.yml")
(run-hooks 'post-command-hook)
(wait (lambda () (= 2 (length (errors)))))
(dolist (each (errors)) (princ (format "unknown-key %s\\n" (line-number-at-pos (flymake-diagnostic-beg each)))))
(goto-char (point-min))
(forward-line 7)
(eglot-code-actions (line-beginning-position) (line-end-position) "quickfix" t)
(wait (lambda () (has "weight_decay")))
(deepy-fix)
(wait (lambda () (has "hidden_dropout")))
(save-buffer)
"""


def settings(language: str) -> str:
    """Return the lines of the guide in a language."""
    [block] = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "editors.md").read_text("utf-8"), re.DOTALL)
    return str(block)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, and `deepy` in the PATH."""
    (tmp_path / "my.yml").write_text(WRONG)
    command = tmp_path / "bin" / "deepy"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/deepy.py" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=250)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_neovim(folder: Path) -> None:
    version = re.match(r"NVIM v(\d+)\.(\d+)", output("nvim", "--version")) if shutil.which("nvim") else None
    if not version or (int(version[1]), int(version[2])) < (0, 11):
        pytest.skip("Neovim 0.11 is not installed")
    (folder / "init.lua").write_text(settings("lua"))
    (folder / "try.lua").write_text(LUA)
    said = output("nvim", "--headless", "--clean", "-u", "init.lua", "my.yml", "-c", "luafile try.lua")
    assert (folder / "my.yml").read_text() == RIGHT, said
    assert {"unknown-key 8", "unknown-key 9"} <= set(said.splitlines()) and "lens no plan: " in said


@pytest.mark.slow
def test_emacs(folder: Path) -> None:
    loaded = ["emacs", "--batch", "--eval", "(progn (require 'package) (package-initialize))"]
    found = "(princ (list (require 'eglot nil t) (require 'yaml-mode nil t)))"
    if not shutil.which("emacs") or "(eglot yaml-mode)" not in output(*loaded, "--eval", found):
        pytest.skip("Emacs with eglot and yaml-mode is not installed")
    (folder / "settings.el").write_text(settings("elisp"))
    (folder / "try.el").write_text(ELISP)
    said = output(*loaded, "-l", "settings.el", "-l", "try.el")
    assert (folder / "my.yml").read_text() == RIGHT, said
    assert {"unknown-key 8", "unknown-key 9"} <= set(said.splitlines())
