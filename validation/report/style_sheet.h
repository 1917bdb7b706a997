// The look of the report's page: one sheet for screens of any width, light and dark, and for paper.
#pragma once

namespace outgrad::validation::page {

/// Custom properties of the page; those of the plots stand beside them.
inline constexpr const char* kLightPage =
    "--paper: #fff; --ink: #1c2128; --soft: #59636e; --line: #d8dee4; --strong: #afb8c1; --pale: #f6f8fa; --good: #1a7f37; --bad: #b3261e; "
    "--good-pale: #eaf6ed; --bad-pale: #fbeceb; --link: #1f5fa8; ";
inline constexpr const char* kDarkPage =
    "--paper: #0f1319; --ink: #e3e8ee; --soft: #9aa5b1; --line: #2b323b; --strong: #4b5561; --pale: #181e26; --good: #5fd08f; --bad: #ff8a80; "
    "--good-pale: #12251a; --bad-pale: #301817; --link: #79b8ff; ";

inline constexpr const char* kStyleSheet = R"css(
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1280px; padding: 22px 28px 80px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 20px; line-height: 1.3; margin: 48px 0 8px; padding-top: 14px; border-top: 1px solid var(--line); scroll-margin-top: 8px; }
h3 { font-size: 16px; margin: 30px 0 4px; }
p { max-width: 82ch; margin: 8px 0 12px; }
p.lead { color: var(--soft); margin: 2px 0 14px; }
a { color: var(--link); }
h2.verdict { font-size: 22px; margin: 0; padding: 10px 16px; border: 0; border-left: 6px solid var(--soft); border-radius: 3px; background: var(--pale); }
h2.verdict.good { border-color: var(--good); background: var(--good-pale); }
h2.verdict.bad { border-color: var(--bad); background: var(--bad-pale); }
nav { margin: 22px 0 0; padding: 10px 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); font-size: 14px; line-height: 2; }
nav a { text-decoration: none; margin-right: 16px; white-space: nowrap; }
nav a:hover, nav a:focus { text-decoration: underline; }
figure { margin: 18px 0 26px; min-width: 0; }
figcaption { font-size: 13.5px; color: var(--soft); margin: 6px 0; max-width: 110ch; }
.made { display: block; font-size: 12px; margin-top: 2px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 10px 24px; }
.plots.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); }
.plots svg { width: 100%; max-width: 620px; height: auto; display: block; }
.plots svg text { font-family: inherit; }
.tiles { list-style: none; margin: 0; padding: 0; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 165px), 1fr)); gap: 10px; }
.tiles li { padding: 9px 12px; background: var(--pale); border: 1px solid var(--line); border-radius: 6px; }
.tiles b { display: block; font-size: 20px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tiles span { display: block; font-size: 13px; line-height: 1.35; margin-top: 2px; }
.tiles small { display: block; font-size: 12px; line-height: 1.35; color: var(--soft); margin-top: 2px; }
#summary figure { margin: 8px 0; }
#summary h3 { margin: 10px 0 0; font-size: 14px; }
#summary .beside p { font-size: 13.5px; margin: 2px 0 6px; }
.beside { display: grid; grid-template-columns: minmax(0, 2fr) minmax(240px, 1fr); gap: 0 36px; }
.beside > div { min-width: 0; }
.beside > div + div th { white-space: normal; min-width: 0; }
#summary td, #summary th { padding-top: 3px; padding-bottom: 3px; }
.scroll { overflow-x: auto; max-width: 100%; }
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
details summary { cursor: pointer; color: var(--link); font-size: 13.5px; padding: 4px 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 9px; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--strong); vertical-align: bottom; font-weight: 600; }
tbody th { font-weight: 400; }
th small { display: block; font-weight: 400; color: var(--soft); }
th.left, td.left { text-align: left; }
td.long, th.long { white-space: normal; min-width: 36ch; }
tbody tr:hover { background: var(--pale); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; margin: 10px 0; max-width: 92ch; font-size: 14px; }
dt { font-weight: 600; }
dd { margin: 0; }
code { font: 0.92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--pale); padding: 1px 4px; border-radius: 4px;
  overflow-wrap: anywhere; }
sup { font-size: 0.75em; line-height: 0; }
.good { color: var(--good); }
.bad { color: var(--bad); }
td.bad, th.bad { font-weight: 600; }
.muted { color: var(--soft); }
@media (max-width: 860px) { .beside { grid-template-columns: 1fr; } }
@media (max-width: 560px) {
  body { padding: 18px 14px 60px; }
  h1 { font-size: 21px; }
  h2.verdict { font-size: 19px; padding: 9px 12px; }
  #summary th, #summary td { white-space: normal; padding: 4px 5px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles b { font-size: 17px; }
  th, td { padding: 5px 8px; }
  .scroll tbody th { position: sticky; left: 0; min-width: 36vw; max-width: 38vw; white-space: normal; overflow-wrap: anywhere; background: var(--paper); }
  #summary tbody th { min-width: 24vw; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 6px; }
  nav { line-height: 2.2; }
}
@page { size: A4; margin: 14mm 12mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  h1 { font-size: 17pt; }
  h2 { font-size: 13pt; margin-top: 18pt; }
  h2, h3, figcaption { break-after: avoid; }
  figcaption { break-inside: avoid; }
  .keep { display: inline-block; width: 100%; }
  .keep > h2 { margin-top: 0; padding-top: 18pt; border: 0; }
  figure { margin: 8pt 0 12pt; }
  figcaption { font-size: 8.5pt; }
  .made { font-size: 7pt; }
  .tiles { gap: 5pt; }
  .tiles li { padding: 5pt 7pt; }
  .tiles b { font-size: 12pt; }
  .tiles span { font-size: 8pt; }
  .tiles small { font-size: 7pt; }
  p, li, dd { orphans: 3; widows: 3; }
  nav, details > summary { display: none; }
  details::details-content { content-visibility: visible; display: block; block-size: auto; }
  h2.verdict, .tiles li { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .tiles { grid-template-columns: repeat(3, 1fr); }
  .plots { grid-template-columns: 1fr 1fr; }
  .plots.three { grid-template-columns: 1fr 1fr 1fr; }
  .beside { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 0 14pt; }
  #summary .beside p { font-size: 8.5pt; }
  .plots svg, tr, .tiles li { break-inside: avoid; }
  figure:not(.table) { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  table { font-size: 6.6pt; width: 100%; }
  th, td { padding: 1.5pt 2.5pt; white-space: normal; overflow-wrap: normal; }
  tbody th, td code { overflow-wrap: anywhere; }
  td:not(.left):not(.long) { white-space: nowrap; }
  td.long, th.long { min-width: 0; }
  tbody tr:hover { background: none; }
}
)css";

}  // namespace outgrad::validation::page
