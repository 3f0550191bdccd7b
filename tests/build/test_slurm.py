"""The Slurm script of docs/scale.md, run with a stand-in for Slurm that starts tasks at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from polish import SENTENCES
from small_tokenizers import write_tokenizer

from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.sources import find_sources
from tokalign.tables.bundle import encode_bundle
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

pytest.importorskip("datatrove")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
STAND_INS = {
    "sbatch": """
        script="${@: -1}"
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
        export SLURM_NODELIST=here SLURM_JOB_ID=1 RUN_OFFSET=0
        grep -q merge_stats "$script" || for i in $(seq 0 "$last"); do
            SLURM_ARRAY_TASK_ID=$i bash "$script" >&2 || exit 1
        done
        echo Submitted batch job 1
    """,
    "srun": 'exec "${@: -2}"',
    "scontrol": "echo here",
}


@pytest.mark.long
def test_the_script_in_the_manual_makes_the_table_of_the_local_engine(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "text" / f"{name}.txt").parent.mkdir(exist_ok=True)
        lines = [sentence.replace("\n", f" {name} ") for sentence in SENTENCES]
        (tmp_path / "text" / f"{name}.txt").write_text("".join(f"{one}\n" for one in lines * 2))
    tokenizer = write_tokenizer(tmp_path / "target", vocabulary_size=320)
    (tmp_path / "bin").mkdir()
    for name, script in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "activate").write_text("")
    changes = {
        "/shared/fineweb-2/pol_Latn": str(tmp_path / "text"),
        "/shared/tables": str(tmp_path / "tables"),
        "/shared/venv/bin/activate": str(tmp_path / "activate"),
        '"bielik"': repr(str(tokenizer)),
        "shares=200": "shares=2",
    }
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for shown, here in changes.items():
        assert shown in script
        script = script.replace(shown, here)
    folders = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PATH": os.pathsep.join(folders)},
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    target: Tokenizer[int] = read_tokenizer(tokenizer)  # type: ignore[type-var]
    corpus = Corpus(find_sources([str(tmp_path / "text")]))
    expected = build_dictionary(target, corpus, BackoffOptions(), language="pl")  # type: ignore[arg-type]
    assert (tmp_path / "tables" / "pl.dictionary.tok").read_bytes() == encode_bundle(expected)
