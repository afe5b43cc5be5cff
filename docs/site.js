// The theme makes a landmark without a name of every copy button; code and tables that scroll cannot be reached by keyboard.
const mend = () => {
  document.querySelectorAll(".md-code__nav").forEach((nav) => nav.setAttribute("role", "none"));
  document.querySelectorAll("pre > code:not([tabindex]), .md-typeset__scrollwrap:not([tabindex])").forEach((box) => (box.tabIndex = 0));
};
const changes = { childList: true, subtree: true, attributeFilter: ["tabindex"] };
new MutationObserver(mend).observe(document.body, changes);
mend();
