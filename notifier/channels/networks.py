"""Which addresses a webhook may go to: public ones, and the networks that a setting allows."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from notifier.settings import Network

_GLOBAL_UNICAST = ip_network("2000::/3")  # all else of IPv6 is local, multicast, mapped, translated or unassigned
_NAT64 = ip_network("64:ff9b::/96")
_REFUSED = [
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's metadata and DNS server; of other clouds they are link-local or private
        "192.0.0.0/24",  # protocol assignments, Oracle Cloud's metadata among them; Python before 3.12.4 knows a part
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # Teredo, ORCHID, benchmarking
        "2002::/16",  # 6to4: an IPv4 address of any kind lies within
        "3fff::/20",  # documentation
    )
]


def permitted(address: str, allowed: Sequence[Network]) -> bool:
    """Whether to connect to this address (text, as the resolver gave it). No by default."""
    try:
        ip = _unwrapped(ip_address(address.partition("%")[0]))
    except ValueError:
        return False
    if any(ip in network for network in allowed):
        return True
    if any(ip in network for network in _REFUSED) or ip.is_multicast or ip.is_reserved:
        return False
    return ip.is_global and (ip.version == 4 or ip in _GLOBAL_UNICAST)


def _unwrapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 one stands for: mapped (::ffff:a.b.c.d), or behind NAT64."""
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped:
            return ip.ipv4_mapped
        if ip in _NAT64:
            return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip
