// A gallery without items: add a folder of images, or samples to play with, from the page itself.

import { itemPath, putImage } from "./api.js";
import { announce, make } from "./dom.js";
import { count } from "./words.js";

const IMAGE = /\.(jpe?g|png|webp|gif|bmp|tiff?|heic|avif)$/i;
const SHAPES = ["circle", "square", "stripes", "star"];
const EACH = 8; // samples of each shape

/** `can`: the server takes images. `reload()` is called when items were added. */
export function firstSteps({ can, reload }) {
  const words = make("p", { class: "empty-words" }, "This gallery is empty.");
  if (!can) {
    return [words, make("p", { class: "muted" }, "This server takes no images: it has no encoder or no folder for them. Add some with:"),
      command("midspan gallery add GALLERY --images FOLDER --encoder ENCODER"),
      make("p", { class: "muted" }, "For sample data, two encoders and an upgrade to watch:"), command("midspan demo")];
  }
  const state = make("p", { class: "muted", role: "status", id: "first-state" }, "Images are embedded and stored by this server; the folder's name becomes the label.");
  const folder = make("input", { type: "file", id: "first-folder", multiple: true, webkitdirectory: true, hidden: true, "aria-label": "Choose a folder of images" });
  const run = async (files) => {
    for (const button of [pick, samples]) button.disabled = true;
    const failed = await add(files, state);
    if (failed < files.length) await reload();
    for (const button of [pick, samples]) button.disabled = false;
  };
  const pick = make("button", { type: "button", class: "primary", id: "first-pick", onclick: () => folder.click() }, "Add a folder of images");
  const samples = make("button", { type: "button", id: "first-samples", onclick: async () => run(await drawn()) }, "Add sample images");
  folder.addEventListener("change", () => {
    const files = [...folder.files].filter((file) => file.type.startsWith("image/") || IMAGE.test(file.name));
    if (files.length) run(files.map((file) => ({ file, id: file.webkitRelativePath || file.name, label: labelOf(file) })));
    else state.textContent = "There is no image in this folder.";
  });
  return [words, make("div", { class: "first-actions" }, pick, folder, samples), state];
}

const command = (text) => make("pre", { tabindex: "0" }, make("code", {}, text));

function labelOf(file) {
  const parts = (file.webkitRelativePath || "").split("/");
  return parts.length > 2 ? parts.at(-2) : null;
}

/** One after the other, so that a slow server is not buried; returns how many were refused. */
async function add(files, state) {
  let failed = 0, last = "";
  for (const [row, { file, id, label }] of files.entries()) {
    state.textContent = `${count(row)} of ${count(files.length)} added`;
    try {
      await putImage(itemPath(id), file, label === null ? {} : { label });
    } catch (error) {
      failed += 1;
      last = error.message;
      if (error.status === 401 || error.status === 403 || error.status === 0) break; // the rest would be refused too
    }
  }
  const told = failed ? `${count(failed)} could not be added: ${last}` : `${count(files.length)} images are in`;
  state.textContent = told;
  announce(told);
  return failed;
}

/** Shapes in colours, drawn here: there is nothing to download. */
async function drawn() {
  const made = [];
  for (const shape of SHAPES) {
    for (let number = 0; number < EACH; number += 1) {
      const canvas = make("canvas", { width: "96", height: "96" });
      draw(canvas.getContext("2d"), shape, number);
      const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
      made.push({ id: `samples/${shape}-${number}`, label: shape, file: new File([blob], `${shape}-${number}.png`, { type: "image/png" }) });
    }
  }
  return made;
}

function draw(pen, shape, number) {
  const hue = (SHAPES.indexOf(shape) * 90 + number * 11) % 360, size = 22 + 3 * number;
  pen.fillStyle = `hsl(${hue + 180} 30% 88%)`;
  pen.fillRect(0, 0, 96, 96);
  pen.fillStyle = `hsl(${hue} 70% 45%)`;
  pen.translate(48, 48);
  pen.rotate(number / 5);
  pen.beginPath();
  if (shape === "circle") pen.arc(0, 0, size, 0, 7);
  else if (shape === "square") pen.rect(-size, -size, 2 * size, 2 * size);
  else if (shape === "stripes") for (let at = -60; at < 60; at += 14 + number) pen.rect(at, -80, 7, 160);
  else for (let at = 0; at < 10; at += 1) pen.lineTo((at % 2 ? size / 2 : size) * Math.sin(at * 0.628), (at % 2 ? size / 2 : size) * -Math.cos(at * 0.628));
  pen.fill();
}
