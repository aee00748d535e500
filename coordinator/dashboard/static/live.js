// Shows HTML that the server draws, changing only what differs, so that focus, selection and
// scroll positions outlive an update. Presses and forms go back as one event, "action".

import { h } from "vue";

const ARM_MS = 8000;
const LOOK_MS = 3000;

// A viewer whose session ended while its socket was away gets no socket any more, and nobody could
// tell it so: it looks for itself. A page of a session that is over is a redirect.
setInterval(async () => {
  if (window.socket?.connected) return;
  try {
    const answer = await fetch(location.pathname, { method: "HEAD", redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload();
  } catch {
    // The coordinator is away: it is asked again.
  }
}, LOOK_MS);

function patchAttributes(have, want) {
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name)) have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
}

function isSame(have, want) {
  return (
    have.nodeType === want.nodeType &&
    have.nodeName === want.nodeName &&
    (have.dataset?.key ?? "") === (want.dataset?.key ?? "")
  );
}

// A keyed element moves with its key, so that a pressed button stays with its row.
function claim(parent, at, want) {
  const key = want.dataset?.key;
  if (!key) return parent.childNodes[at];
  for (let i = at; i < parent.childNodes.length; i++) {
    if (isSame(parent.childNodes[i], want)) {
      if (i !== at) parent.insertBefore(parent.childNodes[i], parent.childNodes[at]);
      break;
    }
  }
  return parent.childNodes[at];
}

function patch(parent, want) {
  const wanted = [...want.childNodes];
  wanted.forEach((next, at) => {
    const have = claim(parent, at, next);
    if (!have) {
      parent.append(next);
    } else if (!isSame(have, next)) {
      parent.replaceChild(next, have);
    } else if (have.nodeType !== Node.ELEMENT_NODE) {
      if (have.nodeValue !== next.nodeValue) have.nodeValue = next.nodeValue;
    } else if (!have.dataset.armed && !have.hasAttribute("data-keep")) {
      patchAttributes(have, next);
      patch(have, next);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function arm(button) {
  const label = button.textContent;
  button.dataset.armed = "1";
  button.textContent = button.dataset.confirm;
  setTimeout(() => {
    delete button.dataset.armed;
    button.textContent = label;
  }, ARM_MS);
}

async function copy(button) {
  const text = document.querySelector(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard's API needs HTTPS or localhost; a selection works everywhere.
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.dataset.armed = "1";
  button.textContent = "Copied";
  setTimeout(() => {
    delete button.dataset.armed;
    button.textContent = "Copy";
  }, 1500);
}

export default {
  props: { markup: String, leave: String },
  // No template: the browser would have to compile it, and may not (policy.py).
  render() {
    return h("div", { ref: "root", onClick: this.onClick, onSubmit: this.onSubmit });
  },
  mounted() {
    this.draw();
    document.getElementById("first-paint")?.remove();
    // On a phone the navigation scrolls sideways: the page's own link should be in sight.
    const current = this.$refs.root.querySelector("nav [aria-current]");
    current?.scrollIntoView({ inline: "center", block: "nearest" });
  },
  watch: {
    markup() {
      this.draw();
    },
    leave(path) {
      location.href = path;
    },
  },
  methods: {
    draw() {
      const template = document.createElement("template");
      template.innerHTML = this.markup ?? "";
      patch(this.$refs.root, template.content);
    },
    onClick(event) {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.copy) copy(button);
      if (!button.dataset.action) return;
      if (button.dataset.confirm && !button.dataset.armed) {
        arm(button);
        return;
      }
      this.$emit("action", { action: button.dataset.action, value: button.dataset.value, fields: {} });
    },
    onSubmit(event) {
      const form = event.target;
      if (form.hasAttribute("data-native")) return;
      event.preventDefault();
      const fields = Object.fromEntries(new FormData(form).entries());
      this.$emit("action", { action: form.dataset.action, value: "", fields });
      if (!form.hasAttribute("data-keep-fields")) form.reset();
    },
  },
};
