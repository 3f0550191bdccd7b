"""What is named like a secret or holds a key is never read, and what only looks so is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from documents import MEETING, write_pdf

from tokalign.build.documents import Rules, find_documents, read_document
from tokalign.errors import CorpusError


def found(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of files of these names that would be read."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MEETING)
    return [os.path.relpath(file.path, folder) for file in find_documents([folder], Rules())[0]]


SECRETS = (
    *(".env", ".env.txt", "prod.env.txt", ".ssh/notes.txt", ".git/description.txt", "netrc.txt"),
    *("server.key.txt", "site.pem.txt", "vpn.ovpn/readme.txt", "me.asc.txt", "id_rsa.txt"),
    *(
        "id_ed25519.md",
        "id_ecdsa/notes.md",
        "ssh-keys.txt",
        "klucz prywatny.txt",
        "Private Keys.md",
    ),
    *("Passwords.txt", "deep/er/AWS-Credentials.txt", "client_secret.html", "my secrets.md"),
    *("secret/a.txt", "tokens.txt", "GitHub Token.md", "refresh_token_2024.txt", "token/a.txt"),
    *("logins.txt", "firefox-logins.html", "bitwarden_export_2024.txt", "1Password/Emergency.txt"),
    *("LastPass Vault.html", "KeePass.txt", "1Password Emergency Kit.pdf", "Access Keys.txt"),
    *("jelszavak.txt", "moje hasła.md", "moje hasla.md", "lista haseł.txt", "мої паролі.txt"),
    *("hesla k účtům.txt", "zoznam hesiel.txt", "slaptažodžiai.md"),
    *("github-recovery-codes.txt", "Backup-codes-jan.txt", "discord_backup_codes.txt", "2FA.txt"),
    *("BitLocker Recovery Key 1A2B.TXT", "kody zapasowe.txt", "totp.md", "Google Authenticator.md"),
    *(
        "seed.txt",
        "ledger seed.txt",
        "my seeds.md",
        "keystore.txt",
        "mnemonics.md",
        "seed phrase.html",
        "Bitcoin Wallet.txt",
    ),
    *("metamask.txt", "mnemonic.txt", "bash_history.txt", "ConsoleHost_history.txt", "cookies.txt"),
    *("youtube.com_cookies.txt", "abc123.default-release/pkcs11.txt"),
)
INNOCENT = (
    *("tokenizer.md", "Tokenizacja.txt", "key findings.txt", "keynote.md", "secretary.md"),
    *("Secretariat/minutes.txt", "recovery plan.md", "family_history.txt", "birdseed market.md"),
    *("seedlings.txt", "backup of my codebase.md", "identity.md", "idea_1.txt", "monkeys.md"),
    *("accessibility keynote.md", "a2fac0.txt", "environment.md", "mnemonics for anatomy.txt"),
    *("catalogins.txt", "passport office.md", "default/settings.md", "Christmas cookies.md"),
)


def test_files_that_are_named_like_secrets_are_never_read(tmp_path: Path) -> None:
    assert found(tmp_path, ["kept.txt", *SECRETS]) == ["kept.txt"]


def test_names_that_only_look_like_secrets_are_read(tmp_path: Path) -> None:
    assert found(tmp_path, INNOCENT) == sorted(INNOCENT)


WORD = "Ab1" * 40
KEYS = {
    "a private key": (
        *("-----BEGIN PRIVATE KEY-----", "\\n-----BEGIN OPENSSH PRIVATE KEY-----\\nb3"),
        *("-----BEGIN PGP PRIVATE KEY BLOCK-----", "PuTTY-User-Key-File-3: ssh-ed25519"),
        *(f"AGE-SECRET-KEY-1{'Q9' * 29}", f"xprv{WORD[:107]}"),
    ),
    "the key of a cloud": (
        *(
            "AKIAIOSFODNN7EXAMPLE",
            "key=ASIAIOSFODNN7EXAMPLE",
            f"aws_secret_access_key = {WORD[:40]}",
        ),
        *(f'"AWS_SESSION_TOKEN": "{WORD}"', f"AWSSecretAccessKey={WORD[:40]}", f"AIza{WORD[:35]}"),
        *(
            f"GOCSPX-{WORD[:28]}",
            f"ya29.{WORD}",
            f"AccountKey={WORD[:86]}==",
            f"dop_v1_{'a1' * 32}",
        ),
    ),
    "an access token": (
        *(f"ghp_{WORD[:36]}", f"github_pat_{WORD[:22]}_{WORD[:59]}", f"gho_{WORD[:36]}"),
        *(f"glpat-{WORD[:20]}", f"xoxb-123456789012-{WORD[:24]}", f"xoxp-1-2-3-{WORD[:32]}"),
        *(f"sk-{WORD[:48]}", f"sk-proj-{WORD[:20]}_{WORD[:20]}", f"sk-ant-api03-{WORD[:90]}"),
        *("sk-" + "abcdefgh" * 6, f"sk_live_{WORD[:24]}", f"hf_{'aB' * 17}", f"npm_{WORD[:36]}"),
        *(f"pypi-AgEI{WORD}", f"SG.{WORD[:22]}.{WORD[:43]}", f"123456789:AA{WORD[:33]}"),
        *(
            f"eyJ{WORD[:33]}.eyJ{WORD}.{WORD[:43]}",
            f"https://hooks.slack.com/services/T{WORD[:9]}/B",
        ),
    ),
    "the cookies of a browser": ("# Netscape HTTP Cookie File",),
}


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, keys in KEYS.items() for key in keys]
)
@pytest.mark.parametrize("before", ["", f"{MEETING}\n", "export KEY=", '{"key": "', "("])
def test_a_document_that_holds_a_key_is_not_read_and_its_key_not_told(
    tmp_path: Path, kind: str, key: str, before: str
) -> None:
    path = tmp_path / "notes.md"
    path.write_text(f"{before}{key}\n{MEETING}")
    with pytest.raises(CorpusError) as refused:
        read_document(path)
    assert str(refused.value) == f"{path}: it holds {kind}; the document is left out"


def test_keys_are_seen_in_every_kind_of_document(tmp_path: Path) -> None:
    key = "AKIAIOSFODNN7EXAMPLE"
    write_pdf(tmp_path / "a.pdf", [MEETING.encode("ascii", "ignore").decode(), key])
    (tmp_path / "a.html").write_text(f"<p>{MEETING}</p><code>{key}</code>")
    for path in tmp_path.iterdir():
        with pytest.raises(CorpusError, match="it holds the key of a cloud"):
            read_document(path)


@pytest.mark.parametrize(
    "text",
    [
        "A public key begins with -----BEGIN PUBLIC KEY-----.",
        "Set aws_secret_access_key in ~/.aws/credentials; key ids begin with AKIA.",
        "task-oriented-dialogue-systems-in-the-wild-2024 and risk-averse-investors-everywhere-1",
        "sk-SK, sk-learn and sk-learn-pipelines",
        "Tokens of GitHub begin with ghp_ or github_pat_, those of Slack with xoxb-.",
        "https://example.org/SG.html?v=1.2.3 eyJ and eyJhbGciOiJIUzI1NiJ9",
        "KRAKIAKRAKIAKRAKIAKRAKIA",
    ],
)
def test_a_document_about_keys_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert read_document(tmp_path / "a.txt") == text
