"""Which addresses a webhook may go to."""

from __future__ import annotations

import pytest

from notifier.channels.networks import permitted
from notifier.errors import SettingsError
from notifier.settings import Settings, networks


@pytest.mark.parametrize("address", [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1", "192.88.99.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::1", "2001:db8::1",
    "2002:7f00:1::1", "2002:a9fe:a9fe::1", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1",
    "ff02::1", "ff0e::1", "5f00::1", "", "localhost", "1.2.3", "127.1", "1.1.1.1.", "/etc/passwd",
])  # fmt: skip
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not permitted(address, [])


@pytest.mark.parametrize("address", [
    "1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8",
    "64:ff9b::808:808",
])  # fmt: skip
def test_what_is_public_is_permitted(address: str) -> None:
    assert permitted(address, [])


@pytest.mark.parametrize(("address", "allowed", "may"), [
    ("10.1.2.3", "10.1.0.0/16", True), ("10.2.0.1", "10.1.0.0/16", False), ("::ffff:10.1.2.3", "10.1.0.0/16", True),
    ("127.0.0.1", "127.0.0.1", True), ("fd00::1", "10.0.0.0/8, fd00::/8", True),
    ("169.254.169.254", "10.0.0.0/8", False),
    ("8.8.8.8", "10.0.0.0/8", True), ("::1", "127.0.0.0/8", False),
])  # fmt: skip
def test_networks_are_allowed_by_name(address: str, allowed: str, may: bool) -> None:
    assert permitted(address, networks(allowed)) == may


@pytest.mark.parametrize(("name", "value"), [
    ("webhook_allow_networks", "10.0.0.1/8"), ("webhook_allow_networks", "intranet"),
    ("webhook_secret", "hunter2-hunter2"),
    ("webhook_secret", "whsec_hunter2"), ("webhook_secret", "whsec_" + "hunter2!" * 8), ("webhook_timeout", "60"),
    ("webhook_secret", "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="), ("webhook_timeout", "nan"),
])  # fmt: skip
def test_a_bad_setting_is_refused_by_name_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^NOTIFIER_{name.upper()}: ") as refused:
        Settings(**{name: value})
    assert value not in str(refused.value)
