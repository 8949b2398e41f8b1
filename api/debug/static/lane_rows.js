// Lane rows: where each lane stands. Lanes of a large fleet fold into groups, in which each is a line of a heat map;
// a group that somebody opened has lanes in full.

const LANE_MIN_PX = 22;
const LANE_MAX_PX = 56;
const HEAT_PX = [2, 4]; // at least and at most, by the room there is
const FOLD_LANES = 32; // more lanes than this fold
const GROUPS_MAX = 20;
const GROUP_MIN_PX = 22;
const GROUP_HEAD_PX = 18;
const GROUP_PAD_PX = 4;

// The place of each lane, those of its group with it, and how high all of them are.
export function laneRows(names, room, opened, head) {
  return names.length > FOLD_LANES ? foldedRows(names, room, opened, head) : plainRows(names, room, head);
}

function plainRows(names, room, head) {
  const height = Math.max(LANE_MIN_PX, Math.min(LANE_MAX_PX, Math.floor(room / Math.max(1, names.length))));
  return { places: names.map((_, at) => ({ top: head + at * height, height, folded: false })), groups: [], bottom: head + names.length * height };
}

function foldedRows(names, room, opened, head) {
  const heat = Math.max(HEAT_PX[0], Math.min(HEAT_PX[1], Math.floor(room / names.length)));
  const size = Math.ceil(names.length / GROUPS_MAX);
  const places = [];
  const groups = [];
  let top = head;
  for (let from = 0; from < names.length; from += size) {
    const to = Math.min(names.length, from + size);
    const open = opened.has(groups.length);
    const lane = open ? LANE_MIN_PX : heat;
    const first = top + (open ? GROUP_HEAD_PX : GROUP_PAD_PX / 2);
    for (let at = from; at < to; at++) places.push({ top: first + (at - from) * lane, height: lane, folded: !open, group: groups.length });
    const height = open ? GROUP_HEAD_PX + (to - from) * lane : Math.max(GROUP_MIN_PX, (to - from) * lane + GROUP_PAD_PX);
    groups.push({ from, to, top, height, open, name: span(names[from], names[to - 1]) });
    top += height;
  }
  return { places, groups, bottom: top };
}

// `worker-10 … 19`: what both names begin with is there once.
function span(first, last) {
  if (first === last) return first;
  let same = 0;
  while (same < first.length && first[same] === last[same]) same += 1;
  while (same > 0 && /\d/.test(first[same - 1])) same -= 1;
  return `${first} … ${last.slice(same)}`;
}
