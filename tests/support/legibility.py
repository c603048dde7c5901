"""What a reader of an HTML page cannot read: texts of low contrast, and texts that are cut off or too small."""

from __future__ import annotations

import re

from tests.support.browser import Page

#: The least ratio of luminances for text in WCAG 2, level AA.
LEAST_CONTRAST = 4.5
#: In pixels.
SMALLEST_TEXT = 8.5

#: Returns the texts of the visible part with their colour, and those beneath them with theirs, up to the opaque one.
TEXTS = """
(() => {
  const opacity = (one) => one ? getComputedStyle(one).opacity * opacity(one.parentElement) : 1;
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, element = text.parentElement;
    const shown = element.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true});
    if (!text.data.trim() || !shown) continue;
    if (/^(title|style|script|option)$/.test(element.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const box = range.getClientRects()[0];
    if (!box || box.width < 2 || box.height < 2) continue;
    const style = getComputedStyle(element), svg = element.ownerSVGElement;
    const at = [box.left + Math.min(box.width / 2, 400), box.top + box.height / 2];
    const beneath = [];
    // Not those of inner drawings, which are clipped and hold no texts.
    if (svg) for (const shape of svg.querySelectorAll('rect, circle, path, polygon')) {
      const where = shape.getBoundingClientRect(), fill = getComputedStyle(shape).fill;
      const order = shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (!order || fill === 'none' || shape.closest('clipPath') || shape.ownerSVGElement !== svg) continue;
      if (where.left <= at[0] && at[0] <= where.right && where.top <= at[1] && at[1] <= where.bottom)
        beneath.unshift([fill, opacity(shape)]);
    }
    for (let one = element; one; one = one.parentElement)
      beneath.push([getComputedStyle(one).backgroundColor, opacity(one)]);
    const matrix = svg ? element.getScreenCTM().d : 1;
    found.push({
      text: text.data.trim().slice(0, 40), size: parseFloat(style.fontSize) * matrix,
      colour: [svg ? style.fill : style.color, opacity(element)], beneath, left: box.left, right: box.right,
    });
  }
  return found;
})()
"""

Colour = tuple[float, float, float]


def _rgba(text: str) -> tuple[Colour, float]:
    numbers = [float(number) for number in re.findall(r"[\d.]+", text)]
    return (numbers[0], numbers[1], numbers[2]), numbers[3] if len(numbers) > 3 else 1.0


def luminance(colour: Colour) -> float:
    """Return the relative luminance as WCAG 2 defines it. colour: red, green and blue of sRGB, from 0 to 255."""
    shares = (value / 255 for value in colour)
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def over(colour: Colour, alpha: float, ground: Colour) -> Colour:
    """Return what is seen of a colour that lets the ground through."""
    red, green, blue = (alpha * a + (1 - alpha) * b for a, b in zip(colour, ground, strict=True))
    return red, green, blue


def low_contrasts(page: Page, scheme: str) -> set[str]:
    """Return the texts of the page whose contrast is too low, with it. scheme: `light` or `dark`."""
    low: set[str] = set()
    for text in page.value(TEXTS):
        ground: Colour = (255.0, 255.0, 255.0) if scheme == "light" else (18.0, 18.0, 18.0)
        for words, opacity in reversed(text["beneath"]):
            colour, alpha = _rgba(words)
            ground = over(colour, alpha * opacity, ground)
        colour, alpha = _rgba(text["colour"][0])
        ratio = contrast(over(colour, alpha * text["colour"][1], ground), ground)
        if ratio < LEAST_CONTRAST:
            low.add(f"{text['text']}: {ratio:.2f}")
    return low


def small_texts(page: Page) -> set[str]:
    """Return the texts of the page that are too small to be read."""
    return {f"{text['text']}: {text['size']:.1f}" for text in page.value(TEXTS) if text["size"] < SMALLEST_TEXT}


def cut_texts(page: Page, width: int) -> set[str]:
    """Return the texts that reach beyond the window, also those within a part of the page that can be scrolled."""
    return {text["text"] for text in page.value(TEXTS) if text["right"] > width + 1 or text["left"] < -1}
