// What is wider than the page can be scrolled by keyboard only where the focus can go.
const widths = new ResizeObserver((all) => {
  for (const { target } of all) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
addEventListener("load", () => {
  for (const each of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .formula")) widths.observe(each);
});
