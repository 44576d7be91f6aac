() => {
  // The slider under a denoised caption: the words as they stood at that step, and a line across the heatmap above.
  const at = (replay) => {
    const frames = JSON.parse(replay.dataset.frames), slider = replay.querySelector("input");
    const [step, tokens] = frames[slider.value];
    const words = tokens.map(([text, state]) => (state === "masked" ? "▒▒▒" : text.trim() || "␣"));
    replay.querySelector("output").textContent = `${step} of ${frames.at(-1)[0]}`;
    slider.setAttribute("aria-valuetext", `step ${step}: ${words.join(" ").replaceAll("▒▒▒", "masked")}`);
    replay.querySelector("p").replaceChildren(...tokens.flatMap(([text, state, tint], i) => {
      const token = document.createElement("span");
      token.className = `cl-token cl-${state} ${tint > 0 ? "cl-for" : tint < 0 ? "cl-against" : "cl-even"}`;
      token.style.setProperty("--tint", Math.abs(tint));
      token.textContent = words[i];
      return text.startsWith(" ") || state === "masked" ? [" ", token] : [token];
    }));
    return step;
  };
  const mark = (replay, step) => {
    const plot = replay.closest(".cl-card")?.querySelector(".js-plotly-plot"), { xaxis3: x, yaxis3: y } = plot?._fullLayout ?? {};
    plot?.querySelector(".cl-now")?.remove();
    if (!x?._length || !y?._length || !step) return;
    const line = document.createElement("div");
    line.className = "cl-now";
    Object.assign(line.style, { left: `${x._offset}px`, width: `${x._length}px`, top: `${y._offset + y.c2p(step)}px` });
    plot.querySelector(".svg-container")?.append(line);
  };
  document.addEventListener("input", (event) => {
    const replay = event.target.closest?.(".cl-replay");
    if (replay) mark(replay, at(replay));
  });
  // Pointing at a word of a finished caption, by mouse, touch or keyboard, lights where in the input it comes from.
  const light = document.createElement("div");
  light.className = "cl-light";
  light.hidden = true;
  light.setAttribute("aria-hidden", "true");
  document.body.append(light);
  const mapOf = (token) => {
    const at = token?.getAttribute("popovertarget")?.split("-").at(-1);
    return at && token.closest(".cl-card")?.querySelector(`.cl-word[data-at~="${at}"]`);
  };
  const inputBox = () => {
    const input = [...document.querySelectorAll("#cl-picture img, #cl-sound #waveform")].find((e) => e.getClientRects().length);
    if (!input) return null;
    let { left, top, width, height } = input.getBoundingClientRect();
    if (input.naturalWidth && getComputedStyle(input).objectFit !== "fill") { // the picture stands in the middle of its element
      const scale = Math.min(width / input.naturalWidth, height / input.naturalHeight);
      const [w, h] = [scale * input.naturalWidth, scale * input.naturalHeight];
      [left, top, width, height] = [left + (width - w) / 2, top + (height - h) / 2, w, h];
    }
    return { left: `${left + scrollX}px`, top: `${top + scrollY}px`, width: `${width}px`, height: `${height}px` };
  };
  const show = (event) => {
    const token = event.target.closest?.(".cl-caption button.cl-token"), word = mapOf(token), box = word && inputBox();
    light.hidden = !box;
    if (!box) return;
    Object.assign(light.style, box, { backgroundImage: `url("${word.querySelector("img").src}")` });
    light.dataset.word = word.querySelector("figcaption").firstChild.textContent.trim();
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, show);
  document.addEventListener("focusout", () => (light.hidden = true));
  addEventListener("resize", () => (light.hidden = true));
  // The panel of a word that was tapped or opened shows the same: on a phone the input is out of sight.
  document.addEventListener("toggle", (event) => {
    const panel = event.target;
    if (event.newState !== "open" || !panel.matches?.(".cl-caption .cl-pop") || panel.querySelector(".cl-where")) return;
    const word = mapOf(document.querySelector(`[popovertarget="${panel.id}"]`)), where = word?.closest(".cl-where");
    if (!where) return;
    const here = where.cloneNode(false);
    here.append(word.querySelector(".cl-thumb").cloneNode(true));
    panel.prepend(here);
  }, true);
  // On a narrow screen the cards stand below the sliders: Caption goes there.
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#cl-run") || !matchMedia("(max-width: 900px)").matches) return;
    const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth";
    document.querySelector(".cl-main")?.scrollIntoView({ behavior });
  });
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
    for (const replay of document.querySelectorAll(".cl-replay:not([data-seen])")) {
      replay.dataset.seen = "yes";
      at(replay);
      mark(replay, null);
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
