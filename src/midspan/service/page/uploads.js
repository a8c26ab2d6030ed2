// Query images: in memory, and in the browser's own database, so that they survive a reload.

const DAY = 86_400_000; // ms that they are kept
const MOST = 20;
const images = new Map(); // by key

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function store(mode) {
  const opening = indexedDB.open("midspan", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("queries", { keyPath: "key" });
  return (await done(opening)).transaction("queries", mode).objectStore("queries");
}

/** Before the first view is shown; what is old goes. */
export async function restoreImages() {
  try {
    const kept = await done((await store("readwrite")).getAll());
    kept.sort((a, b) => b.at - a.at);
    const gone = kept.filter((one, row) => row >= MOST || Date.now() - one.at > DAY);
    const shelf = await store("readwrite");
    for (const one of gone) shelf.delete(one.key);
    for (const one of kept) if (!gone.includes(one)) images.set(one.key, one.file);
  } catch { /* a browser that keeps nothing: images live as long as the page */ }
}

/** Its key, for the address. */
export function keepImage(file) {
  for (const [key, known] of images) if (known === file) return key;
  const key = Math.random().toString(36).slice(2, 10);
  images.set(key, file);
  store("readwrite").then((shelf) => shelf.put({ key, file, at: Date.now() })).catch(() => {});
  return key;
}

export const imageOf = (key) => images.get(key) ?? null;
