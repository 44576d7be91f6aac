() => {
  // Three steps that say what to look at. Shown once, when the first caption is there; remembered; the header starts it again.
  const KEY = "caption-lab-tour";
  const STEPS = [
    [".cl-card .cl-caption", "Tinted words", "Orange words became likelier because of the input, purple ones less likely. Point at a word, or tap it, to see where in the input it comes from."],
    [".cl-card .cl-plain", "The unguided line", "What the same model says when nothing guides it. Words that guidance changed are underlined above and struck out here."],
    [".cl-panel .cl-set-guidance_scale", "Drag γ", "At 1 guidance is off; further right the caption says more of what only this input calls for, until it overdoes it."],
  ];
  const memory = {
    get: () => { try { return localStorage.getItem(KEY); } catch { return null; } }, // a page inside another may have none
    set: () => { try { localStorage.setItem(KEY, "done"); } catch { /* then it comes again */ } },
  };
  let tour = null;
  const end = () => {
    memory.set();
    tour?.remove();
    tour = null;
    document.querySelector(".cl-toured")?.classList.remove("cl-toured");
  };
  const show = (index, focus) => {
    const [selector, title, text] = STEPS[index] ?? [], target = selector && document.querySelector(selector);
    document.querySelector(".cl-toured")?.classList.remove("cl-toured");
    if (!target?.getClientRects().length) return end();
    tour ??= document.body.appendChild(Object.assign(document.createElement("section"), { className: "cl-tour" }));
    tour.setAttribute("role", "dialog");
    tour.setAttribute("aria-label", "A short tour");
    tour.innerHTML = `<p><strong>${title}</strong> ${text}</p><div><span>${index + 1} of ${STEPS.length}</span>` +
      `<button type="button" data-tour="skip">Skip</button><button type="button" data-tour="next">${index + 1 < STEPS.length ? "Next" : "Done"}</button></div>`;
    tour.dataset.step = index;
    target.classList.add("cl-toured");
    if (focus) target.scrollIntoView({ block: "center", behavior: "instant" });
    const box = target.getBoundingClientRect(), below = box.bottom + tour.offsetHeight + 12 < innerHeight;
    tour.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tour.offsetWidth - 8)) + scrollX}px`;
    tour.style.top = `${(below ? box.bottom + 8 : Math.max(8, box.top - tour.offsetHeight - 8)) + scrollY}px`;
    if (focus) tour.querySelector("[data-tour=next]").focus({ preventScroll: true });
  };
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest?.("[data-tour]")?.dataset.tour;
    if (pressed === "start") show(0, true);
    if (pressed === "next") show(Number(tour.dataset.step) + 1, true);
    if (pressed === "skip") end();
  });
  document.addEventListener("keydown", (event) => { if (tour && event.key === "Escape") end(); });
  if (memory.get()) return;
  const waiting = new MutationObserver(() => {
    if (!document.querySelector(".cl-body[data-done=yes]")) return;
    waiting.disconnect();
    show(0, false);
  });
  waiting.observe(document.body, { childList: true, subtree: true });
}
