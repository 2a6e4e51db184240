/** Makes elements. Text is always text: nothing that comes from a server is ever read as markup. */

/**
 * An element with attributes and children. An attribute that is null or false is left out; `onclick` and the like are
 * listeners; a child may be an element, a text, a number, null, or a list of these.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Sets lengths and colours that depend on figures; a style attribute would be refused by the content security policy. */
export function styled(made, properties) {
  for (const [name, value] of Object.entries(properties)) made.style.setProperty(name, value);
  return made;
}

/** The element of an id, which the document has. */
export function byId(id) {
  return document.getElementById(id);
}

/** Lets a screen reader say something that happened. */
export function announce(text) {
  byId("announcement").textContent = text;
}
