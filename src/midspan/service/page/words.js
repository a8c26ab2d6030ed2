// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (n) => whole.format(n);

export const items = (n) => `${count(n)} ${n === 1 ? "item" : "items"}`;

/** Never "100 %" before all is done, never "0 %" once something is. */
export function percent(part, all) {
  if (!all) return "0 %";
  const share = (100 * part) / all;
  if (part > 0 && share < 1) return "< 1 %";
  if (part < all && share > 99) return "> 99 %";
  return `${Math.round(share)} %`;
}

/** Small shares, such as negative flips, with a digit more. */
export const share = (value) => `${(100 * value).toFixed(value !== 0 && Math.abs(value) < 0.01 ? 2 : 1)} %`;

export function score(value) {
  return Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(3).replace("-", "−");
}

export function rate(perSecond) {
  return perSecond >= 10 ? `${count(perSecond)} items/s` : `${perSecond.toFixed(1)} items/s`;
}

export function duration(seconds) {
  if (seconds < 1) return "under a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function bytes(n) {
  if (n < 1e6) return `${count(Math.max(1, n / 1e3))} kB`;
  return n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`;
}

export function moment(secondsSince1970) {
  const when = new Date(secondsSince1970 * 1000);
  const today = when.toDateString() === new Date().toDateString();
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const year = when.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return today ? time : `${when.toLocaleDateString([], { day: "numeric", month: "short", ...year })}, ${time}`;
}

/** A message of the server without what only machines compare: a space is its name. */
export const plainMessage = (text) => text.replace(/'([^']+)' \(\d+-d \w+(?:, [\w:]{8,})?\)/g, "“$1”");

export function value(found) {
  return typeof found === "string" ? found : JSON.stringify(found);
}
