() => {
  // Cards are drawn anew with every caption: what a visitor has opened stays open.
  const open = new Set();
  document.addEventListener("toggle", (event) => {
    const key = event.target.dataset?.key;
    if (key && event.target.isConnected) event.target.open ? open.add(key) : open.delete(key);
  }, true);
  new MutationObserver(() => {
    for (const details of document.querySelectorAll("details[data-key]:not([open])")) {
      if (open.has(details.dataset.key) && !details.dataset.seen) details.open = true;
      details.dataset.seen = "yes";
    }
    // Gradio draws example pictures as buttons without a name.
    for (const button of document.querySelectorAll("button.gallery-item:not([aria-label])")) {
      const file = button.querySelector("img")?.src ?? button.innerText;
      button.setAttribute("aria-label", "example: " + file.split("/").pop().split(".")[0].trim());
    }
    // … and says "Empty value" on a plain div, which has no role to carry a label.
    for (const empty of document.querySelectorAll(".empty[aria-label]:not([role])")) empty.setAttribute("role", "img");
  }).observe(document.body, { childList: true, subtree: true });
}
