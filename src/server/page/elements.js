// A chat over this server's own API. Text of models, of the server and of files is only ever put into text nodes, and
// nothing is evaluated: the Content-Security-Policy that comes with the page forbids it, and markup too.

// ---- Elements -----------------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);

// An element with properties (`class`, `on...`, attributes) and children: elements, texts, lists of them, or nothing.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  return appendAll(element, children.flat());
}

// One by one: a call takes no more arguments than fit on the stack, and models may write more.
function appendAll(element, children) {
  for (const c of children) if (c !== undefined && c !== null && c !== "") element.append(c);
  return element;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", "#i-" + name);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

function iconButton(name, label, onclick, text = "") {
  const properties = { type: "button", class: "icon", "aria-label": label, title: label, onclick };
  return make("button", properties, icon(name), text);
}

// Pages that are neither HTTPS nor of this machine have no clipboard: there the old command copies a selection.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { class: "visually-hidden", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function copyButton(textOf, label = "") {
  const button = iconButton("copy", "Copy", async () => {
    try {
      await copyText(textOf());
    } catch {
      return notify("The browser does not let this page copy.", true);
    }
    button.firstChild.replaceWith(icon("check"));
    announce("Copied");
    setTimeout(() => button.firstChild.replaceWith(icon("copy")), 1500);
  }, label);
  return button;
}

function announce(text) {
  $("announcer").textContent = text;
}

function notify(text, bad = false) {
  $("notice").textContent = text;
  $("notice").className = bad ? "bad" : "";
}
