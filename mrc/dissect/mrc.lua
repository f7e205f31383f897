-- SPDX-License-Identifier: Apache-2.0
-- MRC (Multipath Reliable Connection) for Wireshark and tshark.
--
--   mrc dissect --install                       for every start of Wireshark
--   tshark -X lua_script:mrc.lua -r a.pcap      once
--
-- The formats of the headers are as in packet.py: name:bits; a minus sign: signed; x: hexadecimal.
-- Fields without a name are reserved. A datagram that holds a whole burst (UDP_SEGMENT, GRO) is taken
-- apart as mrc dissect does.
--
-- Other packets of the port go to the dissector that had it before, which is RoCE's for 4791.

for _, name in ipairs(Dissector.list()) do
  if name == "mrc" then return end -- installed, and named on the command line too
end

-- tools/dissector: begin
local names = {
  opcode = {
    [0xC6] = "WRITE_FIRST", [0xC7] = "WRITE_MIDDLE", [0xC8] = "WRITE_LAST",
    [0xC9] = "WRITE_LAST_IMM", [0xCA] = "WRITE_ONLY", [0xCB] = "WRITE_ONLY_IMM", [0xD1] = "ACK",
    [0xD8] = "ENDPOINT_REQUEST", [0xD9] = "ENDPOINT_RESPONSE", [0xDC] = "SACK", [0xDD] = "NACK",
    [0xDE] = "PROBE",
  },
  mark = { [0x00] = "NONE", [0x01] = "SKIP_ONCE", [0x02] = "ALWAYS_SKIP" },
  reason = {
    [0x01] = "TRIMMED", [0x02] = "TRIMMED_LASTHOP", [0x06] = "NO_BITMAP", [0x07] = "NO_PKT_BUFFER",
    [0x0A] = "NO_RESOURCE", [0x0B] = "PSN_OOR_WINDOW", [0x19] = "UNEXP_EVENT",
  },
  operation = { [0x00] = "PORT_STATUS", [0x01] = "EV_PROBE" },
  syndrome = {
    [0x1F] = "ACK", [0x61] = "NAK_INV_REQ", [0x62] = "NAK_REM_ACCESS", [0x63] = "NAK_REM_OP",
  },
  mode = { [0x01] = "auth", [0x02] = "aead" },
}
local formats = {
  bth = [[opcode:8 se:1 m:1 pad:2 tver:4 pkey:16x var_res:8x qpn:24x ack_req:1 :1 rtx:1 ts:1 :4
    psn:24]],
  meth = [[rqmsn:16 msn:16]],
  tseth = [[tx_timestamp:16 tsr:1 :11 ftype:4]],
  reth = [[va:64x rkey:32x dma_bytes:32]],
  immdt = [[imm:32x]],
  sack = [[type:4 nh:5 mark:2 :3 pr:1 :1 ack_psn_offset:-16 ev:32x spdcid:16x dpdcid:16x :8
    cum_psn:24 cc_type:4 cc_fl:4 mpr:8 offset:-16 bitmap:64x]],
  cc = [[tx_timestamp:16 :1 ooo_count:15 restore_cwnd:1 rcv_cwnd_pen:7 rcvd_units:24]],
  times = [[tx_timestamp:16 sent_timestamp:16 restore_cwnd:1 rcv_cwnd_pen:7 rcvd_units:24]],
  nack = [[type_nh:16x reason:8 vendor_info:8x ev:32x spdcid:16x dpdcid:16x :8 psn:24 cc_type:4
    cc_fl:4 :8 tx_timestamp:16]],
  probe = [[type_nh:16x :8 vendor:8x id:16x :16 spdcid:16x dpdcid:16x tx_timestamp:16 tsr:1 :11
    ftype:4]],
  request = [[type_nh:14x operation:2 :8 vendor:8x ports:32x :32 tx_timestamp:16 tsr:1 :11
    ftype:4]],
  response = [[type_nh:9x mark:2 :1 operation:2 :2 :208 tx_timestamp:16 :48]],
  aeth = [[syndrome:8 msn:24]],
  seal = [[mode:8 qpn:24x counter:64]],
}
local behind = {
  [0xD1] = { "aeth" }, [0xD8] = { "request" }, [0xD9] = { "response" }, [0xDC] = { "sack", "cc" },
  [0xDD] = { "nack" }, [0xDE] = { "probe" },
}
local titles = {
  bth = "Base transport header", meth = "Message numbers", tseth = "Timestamp",
  reth = "Target memory", immdt = "Immediate", sack = "Selective acknowledgement",
  cc = "NSCC state", times = "Times and state", nack = "Refusal", probe = "Reliability probe",
  request = "Endpoint request", response = "Endpoint response", aeth = "Transport ACK",
  seal = "Seal",
}
-- tools/dissector: end

local AUTH = 1
local CC_TIMES = 15
local TRIMMED = { [0x07] = true, [0x0B] = true } -- DSCPs of csrc/core/wire.h
local BLOCK_BYTES, USIDS = 4, 6 -- of a carrier

local mrc = Proto("mrc", "Multipath Reliable Connection")
local fields, sizes, all = {}, {}, {}

local function make(name, label, bits, kind)
  if type(kind) == "table" then return ProtoField.uint8(name, label, base.HEX, kind) end
  if kind == "b" then return ProtoField.bool(name, label) end
  if kind == "i" then return ProtoField.int16(name, label) end
  local how = kind == "x" and base.HEX or base.DEC
  if bits > 32 then return ProtoField.uint64(name, label, how) end
  if bits > 24 then return ProtoField.uint32(name, label, how) end
  if bits > 16 then return ProtoField.uint24(name, label, how) end
  return ProtoField[bits > 8 and "uint16" or "uint8"](name, label, how)
end

for header, text in pairs(formats) do
  local list, sum = {}, 0
  fields[header] = {}
  for name, sign, digits, hex in text:gmatch("(%S*):(%-?)(%d+)(x?)") do
    local bits = tonumber(digits)
    local kind = names[name] or bits == 1 and "b" or sign == "-" and "i" or hex
    list[#list + 1], sum = { name, bits, kind }, sum + bits
    if name ~= "" then
      local prefix = header == "bth" and "mrc." or "mrc." .. header .. "."
      local made = make(prefix .. name, name, bits, kind)
      fields[header][name] = made
      all[#all + 1] = made
    end
  end
  formats[header], sizes[header] = list, math.floor(sum / 8)
end
-- A header as a whole, so that "mrc.sack" is a filter.
local whole = {}
for header in pairs(formats) do
  whole[header] = ProtoField.none("mrc." .. header, titles[header])
  all[#all + 1] = whole[header]
end

local more = {
  ev = ProtoField.uint32("mrc.ev", "EV", base.HEX),
  part = ProtoField.uint32("mrc.part", "Packet of the burst"),
  bytes = ProtoField.uint32("mrc.payload_bytes", "Payload bytes"),
  payload = ProtoField.bytes("mrc.payload", "Payload"),
  icrc = ProtoField.uint32("mrc.icrc", "ICRC", base.HEX),
  tag = ProtoField.bytes("mrc.seal.tag", "Tag"),
  received = ProtoField.string("mrc.sack.received", "PSNs received"),
  carrier = ProtoField.ipv6("mrc.carrier", "Carrier"),
  usid = ProtoField.uint16("mrc.usid", "uSID", base.HEX),
}
for _, made in pairs(more) do all[#all + 1] = made end
mrc.fields = all

local notes = {
  rtx = ProtoExpert.new("mrc.expert.rtx", "sent again", expert.group.SEQUENCE, expert.severity.NOTE),
  ce = ProtoExpert.new("mrc.expert.ce", "a switch has marked it (CE)", expert.group.SEQUENCE,
    expert.severity.NOTE),
  nack = ProtoExpert.new("mrc.expert.nack", "refused", expert.group.SEQUENCE, expert.severity.WARN),
  nak = ProtoExpert.new("mrc.expert.nak", "the QP fails", expert.group.SEQUENCE,
    expert.severity.ERROR),
  trimmed = ProtoExpert.new("mrc.expert.trimmed", "a switch has trimmed it",
    expert.group.SEQUENCE, expert.severity.NOTE),
  cut = ProtoExpert.new("mrc.expert.cut", "not captured to its end", expert.group.UNDECODED,
    expert.severity.NOTE),
  short = ProtoExpert.new("mrc.expert.short", "shorter than its headers", expert.group.MALFORMED,
    expert.severity.ERROR),
}
mrc.experts = {
  notes.rtx, notes.ce, notes.nack, notes.nak, notes.trimmed, notes.cut, notes.short,
}
mrc.prefs.port = Pref.uint("UDP port", 4791, "that MRC packets are sent to")

local ipv6_label, ipv6_dst = Field.new("ipv6.flow"), Field.new("ipv6.dst")
local ipv6_tclass, ip_tclass = Field.new("ipv6.tclass"), Field.new("ip.dsfield")

-- What the IP headers say: outer ones come first, switches mark these, and the carrier is the last
-- IPv6 destination around the innermost header.
local function network()
  local v6, v4, labels = { ipv6_tclass() }, { ip_tclass() }, { ipv6_label() }
  local inner6, inner4 = v6[#v6], v4[#v4]
  local is_v6 = inner6 and (not inner4 or inner4.offset < inner6.offset)
  local inner = is_v6 and inner6 or inner4
  local found = { label = is_v6 and labels[#labels].value % 0x10000 or 0 }
  found.trimmed = inner and TRIMMED[math.floor(inner.value / 4)]
  for _, list in ipairs({ v6, v4 }) do
    for _, one in ipairs(list) do found.ce = found.ce or one.value % 4 == 3 end
  end
  local destinations = { ipv6_dst() }
  local outer = is_v6 and #destinations - 1 or #destinations
  if inner and outer > 0 and destinations[outer].offset < inner.offset then
    found.carrier = destinations[outer]
  end
  return found
end

-- Adds a header at `at`; returns its values by name.
local function add(tree, buffer, at, header)
  local values, bit = {}, at * 8
  local branch = tree:add(whole[header], buffer(at, sizes[header]))
  for _, one in ipairs(formats[header]) do
    local name, bits, kind = one[1], one[2], one[3]
    if name ~= "" then
      local first = math.floor(bit / 8)
      local range = buffer(first, math.floor((bit + bits - 1) / 8) - first + 1)
      local value
      if bits > 32 then
        value = range:uint64()
        branch:add(fields[header][name], range)
      else
        value = range:len() <= 4 and range:bitfield(bit - first * 8, bits) or 0
        if kind == "i" and value >= 0x8000 then value = value - 0x10000 end
        branch:add(fields[header][name], range, kind == "b" and value == 1 or
          (kind ~= "b" and value or false))
      end
      values[name] = value
    end
    bit = bit + bits
  end
  return values, branch
end

local function stack(bth)
  if bth.opcode < 0xC6 or bth.opcode > 0xCB then return behind[bth.opcode] or {} end
  local list = { "meth" }
  if bth.ts == 1 then list[#list + 1] = "tseth" end
  list[#list + 1] = "reth"
  if bth.opcode == 0xC9 or bth.opcode == 0xCB then list[#list + 1] = "immdt" end
  return list
end

-- The PSNs of a bitmap in words, as "10-14 16".
local function words(base_psn, bitmap)
  local runs, from, last = {}, nil, nil
  for i = 0, 64 do
    local set = i < 64 and bitmap:rshift(i):band(1):tonumber() == 1
    local psn = (base_psn + i) % 0x1000000
    if set and not from then from = psn end
    if from and not set then
      runs[#runs + 1] = from == last and tostring(from) or (from .. "-" .. last)
      from = nil
    end
    last = psn
  end
  return #runs > 0 and table.concat(runs, " ") or "none"
end

local function explain(values, branches, tree, net)
  if values.bth.rtx == 1 then branches.bth:add_proto_expert_info(notes.rtx) end
  if net.ce then tree:add_proto_expert_info(notes.ce) end
  if values.nack then branches.nack:add_proto_expert_info(notes.nack) end
  if values.aeth and values.aeth.syndrome ~= 0x1F then
    branches.aeth:add_proto_expert_info(notes.nak)
  end
  if values.sack then
    local first = (values.sack.cum_psn + values.sack.offset) % 0x1000000
    branches.sack:add(more.received, words(first, values.sack.bitmap)):set_generated()
  end
end

local function add_path(tree, info, net)
  local ev = info.src_port * 0x10000 + net.label
  tree:add(more.ev, ev):set_generated()
  if net.carrier then
    local branch = tree:add(more.carrier, net.carrier.range)
    for i = 0, USIDS - 1 do
      local usid = net.carrier.range(BLOCK_BYTES + 2 * i, 2)
      if usid:uint() == 0 then break end
      branch:add(more.usid, usid)
    end
  end
  return ev
end

-- Payload and ICRC or seal, behind the headers. `missing` bytes were not captured.
local function add_rest(tree, buffer, at, values, missing)
  local sealed = values.bth.tver == 1
  local tail = sealed and sizes.seal + 16 or 4
  local left = buffer:len() + missing - at - tail
  if left < 0 then return tree:add_proto_expert_info(notes.short) end
  local payload = math.max(0, left - values.bth.pad)
  local here = math.min(payload, buffer:len() - at)
  tree:add(more.bytes, payload):set_generated()
  if here > 0 then tree:add(more.payload, buffer(at, here)) end
  if missing > 0 then return tree:add_proto_expert_info(notes.cut) end
  if sealed then
    add(tree, buffer, at + left, "seal")
    tree:add(more.tag, buffer(buffer:len() - 16, 16))
  else
    tree:add(more.icrc, buffer(buffer:len() - 4, 4))
  end
end

-- Whether an immediate can be read: a packet that lacks its end does not say whether it is sealed.
local function is_clear(buffer, values, ends)
  if values.bth.tver ~= 1 then return true end
  local at = buffer:len() - sizes.seal - 16
  return ends and at >= 0 and buffer(at, 1):uint() == AUTH
end

local function dissect_one(buffer, info, root, net, part, parts, missing)
  local tree = root:add(mrc, buffer())
  local ev = add_path(tree, info, net)
  if parts > 1 then tree:add(more.part, part):set_generated() end
  local values, branches, at = {}, {}, sizes.bth
  values.bth, branches.bth = add(tree, buffer, 0, "bth")
  tree:append_text(string.format(", %s, QPN 0x%06x, PSN %d, EV 0x%08x",
    names.opcode[values.bth.opcode] or "unknown", values.bth.qpn, values.bth.psn, ev))
  local headers = stack(values.bth)
  local trimmed = net.trimmed and headers[1] == "meth"
  local ends = missing == 0 and not trimmed
  for _, header in ipairs(headers) do
    if header == "cc" and values.sack.cc_type == CC_TIMES then header = "times" end
    if at + sizes[header] > buffer:len() then
      -- A switch may cut a packet anywhere behind METH and TSETH.
      local by_switch = trimmed and values.meth and header ~= "tseth"
      tree:add_proto_expert_info(
        by_switch and notes.trimmed or missing > 0 and notes.cut or notes.short)
      return
    end
    if header ~= "immdt" or is_clear(buffer, values, ends) then
      values[header], branches[header] = add(tree, buffer, at, header)
    end
    at = at + sizes[header]
  end
  explain(values, branches, tree, net)
  if trimmed then
    tree:add_proto_expert_info(notes.trimmed)
  else
    add_rest(tree, buffer, at, values, missing)
  end
end

-- The length of the packets of a burst: the shortest at which every packet begins alike.
local function step_of(bytes)
  local length = #bytes
  local key = bytes:sub(3, 4) .. "\0" .. bytes:sub(6, 8)
  local function alike(at) -- counted from 0
    return length - at >= 16 and names.opcode[bytes:byte(at + 1)] and
      bytes:sub(at + 3, at + 4) == "\255\255" and bytes:sub(at + 6, at + 8) == bytes:sub(6, 8)
  end
  local found = bytes:find(key, 19, true)
  while found do
    local step = found - 3
    local at = step
    while at < length and alike(at) do at = at + step end
    if at >= length then return step end
    found = bytes:find(key, found + 1, true)
  end
  return length
end

local before -- the dissector that had the port

function mrc.dissector(buffer, info, root)
  if buffer:len() < 16 or not names.opcode[buffer(0, 1):uint()] then
    -- Its complaint about a malformed packet is in the tree, and would be a Lua error here.
    if before then pcall(function() before:call(buffer, info, root) end) end
    return before and buffer:len() or 0
  end
  info.cols.protocol = "MRC"
  local net = network()
  local step = step_of(buffer:raw())
  local parts = math.ceil(buffer:len() / step)
  local missing = buffer:reported_len() - buffer:len()
  for part = 1, parts do
    local at = (part - 1) * step
    local piece = buffer(at, math.min(step, buffer:len() - at)):tvb()
    dissect_one(piece, info, root, net, part, parts, part == parts and missing or 0)
  end
  local opcode, psn = buffer(0, 1):uint(), buffer(9, 3):uint()
  local burst = parts > 1 and string.format(" and %d more", parts - 1) or ""
  local again = buffer(8, 1):bitfield(2, 1) == 1 and " [sent again]" or ""
  info.cols.info = string.format("%s QPN 0x%06x PSN %d%s%s", names.opcode[opcode],
    buffer(5, 3):uint(), psn, burst, again)
  return buffer:len()
end

-- Packets to other ports, such as those of two endpoints on one host.
mrc:register_heuristic("udp", function(buffer, info, root)
  local begins = buffer:len() >= 16 and names.opcode[buffer(0, 1):uint()]
  if not begins or buffer(2, 2):uint() ~= 0xffff then return false end
  mrc.dissector(buffer, info, root)
  return true
end)

local ports, port = DissectorTable.get("udp.port"), nil

-- Takes the port of the preferences, and gives back the one before.
local function take_port()
  if port == mrc.prefs.port then return end
  if port then
    ports:remove(port, mrc)
    if before then ports:add(port, before) end
  end
  port = mrc.prefs.port
  before = ports:get_dissector(port)
  ports:add(port, mrc)
end

mrc.prefs_changed = take_port
take_port()
