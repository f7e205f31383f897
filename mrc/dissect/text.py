# SPDX-License-Identifier: Apache-2.0
"""The line about an MRC packet, and all its fields. Pure."""

from __future__ import annotations

from mrc.dissect.formats import MARKS, OPERATIONS, REASONS, SEALS, SYNDROMES, WITH_IMM
from mrc.dissect.packet import Flow, Packet

_HEX = {"ev", "rkey", "va", "imm", "bitmap", "pkey", "spdcid", "dpdcid", "probe_id"}
_PSN = {"psn", "dest_qpn", "cum_psn", "nack_psn", "key_qpn"}


def where(flow: Flow) -> str:
    """Source, destination, the carrier around them, and the EV."""
    via = f" via {flow.carrier}" if flow.carrier is not None else ""
    return f"{flow.source} > {flow.destination}{via} ev {flow.ev:08x}"


def what(packet: Packet, flow: Flow) -> str:
    """Type, numbers, details and flags."""
    if "BTH" not in packet.headers:
        missing = f", {packet.missing_bytes} not captured" if packet.missing_bytes else ""
        return f"{packet.size} bytes{missing or ', too short for a BTH'}"
    bth = packet.headers["BTH"]
    numbers = f"qp {bth['dest_qpn']:06x} psn {bth['psn']:06x}"
    return f"{packet.kind} {numbers} {_details(packet)}{_flags(packet, flow)}"


def fields(packet: Packet) -> str:
    """A line for each header with all its fields."""
    lines = []
    for header, found in packet.headers.items():
        values = (f"{name} {_value(name, value)}" for name, value in found.items())
        lines.append(f"  {header}: {', '.join(values)}")
    lines.append(f"  payload: {packet.payload_bytes} bytes")
    return "\n".join(lines)


def _value(name: str, value: int) -> str:
    if name in _PSN:
        return f"{value:06x}"
    return f"0x{value:x}" if name in _HEX else str(value)


def _details(packet: Packet) -> str:
    headers = packet.headers
    if not packet.complete:
        return f"{packet.size} bytes"
    if "RETH" in headers:
        return _write(packet)
    if "SETH" in headers:
        return _sack(headers["SETH"], headers.get("CC_STATE") or headers.get("CC_TIMES"))
    if "NETH" in headers:
        neth = headers["NETH"]
        reason = REASONS.get(neth["reason"], str(neth["reason"]))
        return f"{reason} psn {neth['nack_psn']:06x} ev {neth['ev']:08x}"
    if "PETH" in headers:
        return f"id 0x{headers['PETH']['probe_id']:04x} ts {headers['PETH']['tx_timestamp']}"
    if "AETH" in headers:
        aeth = headers["AETH"]
        return f"{SYNDROMES.get(aeth['syndrome'], aeth['syndrome'])} msn {aeth['msn']}"
    for name in ("ERTH", "EETH"):
        if name in headers:
            return _endpoint(packet, name)
    return f"{packet.size} bytes"


def _write(packet: Packet) -> str:
    meth, reth = packet.headers["METH"], packet.headers["RETH"]
    text = f"msn {meth['msn']} va 0x{reth['va']:x} rkey 0x{reth['rkey']:08x}"
    text += f" bytes {packet.payload_bytes} of {reth['dma_bytes']}"
    if packet.opcode in WITH_IMM:
        imm = packet.headers.get("ImmDt")
        text += f" rqmsn {meth['rqmsn']} imm " + (f"0x{imm['imm']:08x}" if imm else "encrypted")
    if "TSETH" in packet.headers:
        text += f" ts {packet.headers['TSETH']['tx_timestamp']}"
    return text


def _sack(seth: dict[str, int], cc: dict[str, int] | None) -> str:
    trigger = f"probe 0x{seth['ack_psn_offset'] & 0xFFFF:04x}"
    if not seth["pr"]:
        trigger = f"for {(seth['cum_psn'] + seth['ack_psn_offset']) & 0xFFFFFF:06x}"
    base = (seth["cum_psn"] + seth["sack_offset"]) & 0xFFFFFF
    text = f"cum {seth['cum_psn']:06x} {trigger} ev {seth['ev']:08x}"
    text += f" bitmap {base:06x}+{seth['bitmap']:016x}"
    if seth["mark"]:
        text += f" {MARKS.get(seth['mark'], seth['mark'])}"
    if cc is not None:
        more = f"ooo {cc['ooo_count']}" if "ooo_count" in cc else f"sent {cc['sent_timestamp']}"
        text += f" ts {cc['tx_timestamp']} {more} rcvd {cc['rcvd_units'] * 256}"
    return text


def _endpoint(packet: Packet, name: str) -> str:
    header, psn = packet.headers[name], packet.headers["BTH"]["psn"]
    operation = OPERATIONS.get(header["operation"], str(header["operation"]))
    text = f"{operation} id 0x{psn & 0xFFFF:04x} ts {header['tx_timestamp']}"
    if name == "EETH":
        return text
    filling = packet.payload_bytes
    return text + (f" filled by {filling}" if filling else f" ports {header['port_status_mask']:b}")


def _flags(packet: Packet, flow: Flow) -> str:
    bth = packet.headers["BTH"]
    names = [name for name in ("se", "m", "ack_req", "rtx") if bth[name]]
    if flow.ce:
        names.append("CE")
    if packet.trimmed:
        names.append("trimmed")
    if "SEAL" in packet.headers:
        seal = packet.headers["SEAL"]
        names.append(f"{SEALS.get(seal['mode'], seal['mode'])} {seal['counter']}")
    if packet.icrc_is_right is False:
        names.append("ICRC WRONG")
    if packet.missing_bytes:
        names.append(f"{packet.missing_bytes} bytes not captured")
    return f" [{' '.join(names)}]" if names else ""
