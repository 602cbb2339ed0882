// Relative sizes along a slider, interpolated linearly between known strengths in rising order.

// Null if nothing is known. Beyond the ends it is extrapolated.
export function pushAt(points, strength) {
  if (points.length < 2) return null;
  const last = points.length - 2;
  const place = points.findIndex(([end], number) => number > 0 && strength <= end);
  const start = place < 1 ? last : place - 1;
  const [[from, low], [to, high]] = [points[start], points[start + 1]];
  return Math.max(0, low + ((high - low) * (strength - from)) / (to - from));
}

export function levelOf(push, { felt, strong }) {
  if (push > strong) return "broken";
  return push < felt ? "mild" : "strong";
}

// The start and end of each level on the slider.
export function bandsOf(points, levels) {
  const ends = new Set(points.map(([strength]) => strength));
  points.slice(1).forEach(([to, high], number) => {
    const [from, low] = points[number];
    for (const level of [levels.felt, levels.strong]) {
      const share = (level - low) / (high - low);
      if (share > 0 && share < 1) ends.add(from + share * (to - from));
    }
  });
  const places = [...ends].sort((one, other) => one - other);
  return places.slice(1).map((to, number) => {
    const from = places[number];
    return { from, to, level: levelOf(pushAt(points, (from + to) / 2), levels) };
  });
}

// At most four significant digits, without trailing zeros.
export const shown = (number) => String(Number(number.toPrecision(4)));
