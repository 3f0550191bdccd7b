"""The Homebrew formula of a release: python packaging/formula.py dist/tokalign-0.1.0.tar.gz

The formula goes to stdout. It installs from the archive of the sources, whose digest it names, with
mlx's wheels from the package index, and the completions of click for three shells.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

FORMULA = """\
class Tokalign < Formula
  desc "Speculative decoding across tokenizers on MLX"
  homepage "https://github.com/tokalign/tokalign"
  url "https://files.pythonhosted.org/packages/source/t/tokalign/{name}"
  sha256 "{digest}"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@3.12"

  def install
    system "python3.12", "-m", "venv", libexec
    system libexec/"bin/pip", "install", "#{{buildpath}}[mlx]"
    bin.install_symlink libexec/"bin/tokalign"
    generate_completions_from_executable(bin/"tokalign", shell_parameter_format: :click)
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/tokalign --version")
  end
end
"""


def formula(archive: Path) -> str:
    """The formula of an archive of sources, as `uv build` writes it."""
    digest = sha256(archive.read_bytes()).hexdigest()
    return FORMULA.format(name=archive.name, digest=digest)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(formula(Path(sys.argv[1])), end="")
