// The OpenAPI document as a page: nothing is loaded from elsewhere. Operations can be tried.

import { get, raw } from "./api.js";
import { $, make, notice } from "./dom.js";

let schemas = {};

const nameOf = (ref) => ref.split("/").at(-1);

/** A schema in few words: "list of Hit", "string or null". */
function words(schema) {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(words).join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${words(schema.items) || "values"}`;
  if (schema.type === "object" && schema.additionalProperties) return `object of ${words(schema.additionalProperties) || "values"}`;
  return schema.format ? `${schema.type} (${schema.format})` : schema.type ?? "any";
}

function fields(schema) {
  const found = schema.$ref ? schemas[nameOf(schema.$ref)] : schema;
  const rows = Object.entries(found?.properties ?? {});
  if (!rows.length) return make("p", {}, make("code", {}, words(schema)));
  const required = new Set(found.required ?? []);
  return make("div", {}, found.description ? make("p", { class: "muted" }, found.description) : null,
    make("table", {}, make("tbody", {}, rows.map(([name, one]) => make("tr", {},
      make("th", { scope: "row" }, make("code", {}, name)), make("td", {}, words(one)),
      make("td", { class: "muted" }, one.default !== undefined ? `default ${JSON.stringify(one.default)}` : required.has(name) ? "required" : ""))))));
}

/** Something to begin with: required fields and defaults. */
function example(schema) {
  const found = schema.$ref ? schemas[nameOf(schema.$ref)] : schema;
  const made = {};
  for (const name of found?.required ?? []) {
    const { type } = found.properties[name];
    made[name] = { string: "", array: [], object: {}, integer: 1, number: 1, boolean: false }[type] ?? null;
  }
  return JSON.stringify(made, null, 2);
}

function tryIt(path, method, operation) {
  const inputs = (operation.parameters ?? []).map((one) => ({
    one, input: make("input", { type: "text", id: `${operation.operationId}-${one.name}`, placeholder: one.schema?.default ?? "", autocomplete: "off" }),
  }));
  const json = operation.requestBody?.content?.["application/json"];
  const body = json && make("textarea", { id: `${operation.operationId}-body`, spellcheck: "false" }, example(json.schema));
  const out = make("pre", { tabindex: "0", hidden: true });
  const send = async () => {
    let target = path;
    const query = new URLSearchParams();
    for (const { one, input } of inputs) {
      if (one.in === "path") target = target.replace(`{${one.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(one.name, input.value);
    }
    out.hidden = false;
    try {
      const { status, text } = await raw(`${target}${query.size ? `?${query}` : ""}`, method.toUpperCase(), body?.value);
      out.textContent = `${status}\n${text}`;
    } catch (error) {
      out.textContent = error.message;
    }
  };
  return [make("h3", {}, "Try it"), make("div", { class: "try" },
    inputs.map(({ one, input }) => make("div", { class: "field" }, make("label", { for: input.id }, one.name), input)),
    body ? make("div", { class: "field" }, make("label", { for: body.id }, "body"), body) : null,
    make("button", { type: "button", class: "primary", onclick: send }, "Send")), out];
}

function operationView(path, method, operation) {
  const content = operation.requestBody?.content ?? {};
  const good = operation.responses["200"]?.content ?? {};
  const inside = make("div", { class: "inside" });
  const details = make("details", { class: "operation", id: operation.operationId },
    make("summary", {}, make("b", { class: `method method-${method}` }, method.toUpperCase()), make("code", {}, path), make("span", {}, operation.summary ?? "")),
    inside);
  details.addEventListener("toggle", () => {
    if (inside.children.length) return;
    inside.append(
      make("p", {}, operation.description ?? operation.summary ?? "", operation["x-role"] ? ` Role: ${operation["x-role"]}.` : ""),
      ...(operation.parameters?.length ? [make("h3", {}, "Parameters"), make("table", {}, make("tbody", {}, operation.parameters.map((one) => make("tr", {},
        make("th", { scope: "row" }, make("code", {}, one.name)), make("td", {}, `${one.in}, ${words(one.schema)}`), make("td", { class: "muted" }, one.description ?? "")))))] : []),
      ...Object.entries(content).flatMap(([kind, { schema }]) => [make("h3", {}, `Request: ${kind}`), fields(schema)]),
      ...Object.entries(good).flatMap(([kind, { schema }]) => [make("h3", {}, `Answer: ${kind}`), schema.anyOf ? make("p", {}, words(schema)) : fields(schema)]),
      make("p", { class: "muted small" }, `Other answers: ${Object.entries(operation.responses).filter(([status]) => status !== "200").map(([status, one]) => `${status} ${one.description}`).join("; ")}`),
      ...(content["multipart/form-data"] && !content["application/json"] ? [] : tryIt(path, method, operation)));
  });
  return details;
}

try {
  const document_ = await get("/openapi.json");
  schemas = document_.components.schemas;
  $("about").textContent = document_.info.description;
  const operations = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  $("tags").replaceChildren(...document_.tags.map((tag) => make("section", { "aria-labelledby": `tag-${tag.name}` },
    make("h2", { id: `tag-${tag.name}` }, tag.name), make("p", {}, tag.description),
    operations.filter(({ operation }) => operation.tags?.includes(tag.name)).map(({ path, method, operation }) => operationView(path, method, operation)))));
} catch (error) {
  notice($("docs-notice"), error.message);
}
