"""The style and the script of the page.

The colours of computing, waiting, exposed communication and messages differ in lightness, too, and stay apart for those
who do not tell red from green; they follow Okabe and Ito, Color Universal Design (2008).
"""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2126;--soft:#5b6670;--line:#d9dee3;--computing:#c3cad1;
--waiting:#e69f00;--exposed:#0072b2;--message:#cc79a7;--moving:#56b4e9;--last:#d55e00;--warn:#fff4dc}
@media(prefers-color-scheme:dark){:root{--paper:#14181c;--ink:#e6eaee;--soft:#9aa5af;--line:#323a42;
--computing:#4b5661;--exposed:#2f8fd0;--last:#ff7a33;--warn:#3a2f14}}
body{font:15px/1.5 system-ui,sans-serif;background:var(--paper);color:var(--ink);margin:2em auto;max-width:76em;
padding:0 1.5em}
h1{font-size:1.5em;margin-bottom:0}h2{font-size:1.15em;margin:2em 0 .4em}h3{font-size:1em;margin:1.2em 0 .3em}
ul{padding-left:1.2em}.conclusions{font-size:1.1em}.conclusions li:first-child{font-weight:600}
.warnings{background:var(--warn);padding:.6em .6em .6em 1.8em;border-radius:4px}
.note,.legend,.scale,.histogram{color:var(--soft);font-size:.87em}
.legend span{margin-right:1.4em;white-space:nowrap}
.legend i{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em}
.computing{fill:var(--computing);background:var(--computing)}.waiting{fill:var(--waiting);background:var(--waiting)}
.exposed{fill:var(--exposed);background:var(--exposed)}.message{fill:var(--message);background:var(--message)}
.moving{fill:var(--moving);background:var(--moving)}
.last{stroke:var(--last);stroke-width:2.5px;vector-effect:non-scaling-stroke;background:var(--last)}
.path{fill:none;stroke:var(--ink);stroke-width:1.5px;stroke-opacity:.75;vector-effect:non-scaling-stroke}
.line{fill:none}.line.waiting{stroke:var(--waiting)}.line.exposed{stroke:var(--exposed)}
.line.message{stroke:var(--message)}.line.moving{stroke:var(--moving)}
rect:hover{opacity:.7}
.table{overflow:auto;max-height:34em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th{position:sticky;top:0;background:var(--paper);color:var(--soft);font-weight:normal;font-size:.87em;text-align:right}
td,th{padding:.15em .8em .15em 0;border-bottom:1px solid var(--line);white-space:nowrap}
td{text-align:right}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}
td svg{display:block}
.picture{display:flex;align-items:flex-start}
.names{position:relative;flex:0 0 3em;font-size:12px;line-height:14px;color:var(--soft)}
.names span{position:absolute;right:.7em}
.scroll{flex:1;overflow-x:auto;min-width:0}.wide{width:100%}.wide svg{display:block;width:100%}
.scale{position:relative;height:1.6em;border-top:1px solid var(--line)}
.scale span{position:absolute;padding-left:.3em;border-left:1px solid var(--line);white-space:nowrap}
.zoom{margin-left:1em;font-weight:normal}.zoom button{font:inherit;font-size:.87em;margin-right:.3em}
.histogram{max-width:48em}.histogram svg{width:100%;height:120px;display:block;border-bottom:1px solid var(--line)}
.histogram div{display:flex;justify-content:space-between}
"""

SCRIPT = """
for (const picture of document.querySelectorAll(".picture")) {
  const scroll = picture.querySelector(".scroll"), wide = picture.querySelector(".wide");
  const zoom = document.createElement("span");
  zoom.className = "zoom";
  for (const times of [1, 3, 10, 30]) {
    const button = document.createElement("button");
    button.textContent = times + "x";
    button.onclick = () => {
      const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / wide.clientWidth;
      wide.style.width = 100 * times + "%";
      scroll.scrollLeft = middle * wide.clientWidth - scroll.clientWidth / 2;
    };
    zoom.append(button);
  }
  picture.previousElementSibling.append(zoom);
}
"""
