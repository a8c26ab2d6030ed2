// The switch between the galleries of a server; hidden where there is but one.

import { galleryName, get } from "./api.js";
import { $, make } from "./dom.js";
import { items } from "./words.js";

export async function startGalleries() {
  let found;
  try {
    found = (await get("/v1/galleries", { quietly: true })).galleries;
  } catch { return; } // the view that is shown says what is wrong
  const select = $("gallery");
  select.replaceChildren(...found.map((one) => make("option", { value: one.name }, `${one.name} (${items(one.items)})`)));
  select.value = galleryName ?? found[0].name;
  if (select.selectedIndex < 0) { // the address names none of them
    select.prepend(make("option", { value: "", disabled: true }, "no such gallery"));
    select.selectedIndex = 0;
  }
  select.hidden = found.length < 2 && galleryName === null;
  select.addEventListener("change", () => {
    const view = location.hash.split("?", 1)[0]; // queries and filters are of one gallery
    location.assign(`/?gallery=${encodeURIComponent(select.value)}${view}`);
  });
}
