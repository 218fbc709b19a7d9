// What `accessibility.py` runs in a page: a function that returns its faults, as sentences.
() => {
  const faults = []
  const tell = (what, element) => faults.push(what + ": " + element.outerHTML.slice(0, 160))
  const all = selector => [...document.querySelectorAll(selector)]
  const seen = element => {
    const box = element.getBoundingClientRect()
    const style = getComputedStyle(element)
    return box.width > 1 && box.height > 1 && style.visibility !== "hidden" && style.display !== "none"
  }
  const text = node => (node.textContent || "").replace(/\s+/g, " ").trim()
  const named = element => {
    const by = element.getAttribute("aria-labelledby")
    if (by) return by.split(" ").map(id => text(document.getElementById(id) || {})).join(" ").trim()
    const label = (element.getAttribute("aria-label") || "").trim()
    if (label) return label
    if (element.labels && element.labels.length) return [...element.labels].map(text).join(" ")
    if (element.matches("input, select, textarea")) return (element.title || "").trim()
    return text(element) || (element.title || "").trim()
  }

  // --- the page
  if (!document.documentElement.lang) faults.push("the page has no language")
  if (!document.title.trim()) faults.push("the page has no title")
  if (all("main").length !== 1) faults.push("the page has not one main landmark")
  if (all("h1").length !== 1) faults.push("the page has not one first heading")
  let before = 0
  for (const heading of all("h1, h2, h3, h4")) {
    const level = Number(heading.tagName[1])
    if (level > before + 1) tell("a heading skips a level", heading)
    if (!text(heading)) tell("a heading is empty", heading)
    before = level
  }
  const ids = new Set()
  for (const element of all("[id]")) {
    if (ids.has(element.id)) tell("an id is there twice", element)
    ids.add(element.id)
  }

  // --- names and roles
  for (const element of all("a[href], button, summary, input:not([type=hidden]), select, textarea")) {
    if (!named(element)) tell("it has no name", element)
  }
  for (const element of all("svg")) {
    if (element.getAttribute("aria-hidden") === "true") continue
    if (element.getAttribute("role") !== "img" || !element.getAttribute("aria-label")) {
      tell("a drawing says nothing", element)
    }
  }
  for (const image of all("img")) if (!image.hasAttribute("alt")) tell("an image says nothing", image)
  for (const nav of all("nav")) if (!named(nav)) tell("a navigation has no name", nav)
  for (const table of all("table")) {
    if (!table.caption || !text(table.caption)) tell("a table has no caption", table)
    for (const head of table.querySelectorAll("thead th")) {
      if (!head.hasAttribute("scope") || !named(head) && !head.querySelector("input")) tell("a column has no name", head)
    }
  }
  for (const element of all("[aria-describedby], [aria-controls]")) {
    for (const name of ["aria-describedby", "aria-controls"]) {
      for (const id of (element.getAttribute(name) || "").split(" ").filter(Boolean)) {
        if (!document.getElementById(id)) tell("it refers to nothing", element)
      }
    }
  }
  for (const element of all("[tabindex]")) {
    if (Number(element.getAttribute("tabindex")) > 0) tell("it changes the order of focus", element)
  }
  for (const box of all("main *")) {
    const style = getComputedStyle(box)
    const scrolls = ["auto", "scroll"].includes(style.overflowX) && box.scrollWidth > box.clientWidth + 1
    if (scrolls && seen(box) && box.tabIndex < 0 && !box.querySelector("a, button, input")) {
      tell("it scrolls, and no key gets there", box)
    }
  }

  // --- what is inside of what
  for (const element of all("a a, a button, button a, label label, p div, ul > :not(li), ol > :not(li)")) {
    tell("it is where it must not be", element)
  }
  for (const element of all("[style], [onclick], script:not([src])")) tell("it is inline", element)

  // --- size
  const width = document.documentElement
  if (width.scrollWidth > width.clientWidth + 1) {
    faults.push(`the page is ${width.scrollWidth} wide in a window of ${width.clientWidth}`)
    for (const element of all("body *")) {
      if (seen(element) && element.getBoundingClientRect().right > width.clientWidth + 1) {
        tell("it sticks out", element)
        break
      }
    }
  }

  // --- contrast
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true })
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = colour
    canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const over = (top, below) => [0, 1, 2].map(n => top[n] * top[3] + below[n] * (1 - top[3])).concat(1)
  const groundOf = element => {
    const layers = []
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor))
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1])
  }
  const light = colour => {
    const part = colour.slice(0, 3).map(value => value / 255)
      .map(value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]
  }
  const told = new Set()
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement
    if (!node.data.trim() || !seen(element) || element.closest("script, svg, .hidden, [disabled], .skip, option")) continue
    const style = getComputedStyle(element)
    const ground = groundOf(element)
    const ink = over(rgba(style.color), ground)
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a)
    const ratio = (high + 0.05) / (low + 0.05)
    const pixels = parseFloat(style.fontSize)
    const large = pixels >= 24 || (pixels >= 18.66 && Number(style.fontWeight) >= 700)
    const key = element.className + ink + ground
    if (ratio < (large ? 3 : 4.5) && !told.has(key)) {
      told.add(key)
      tell(`the contrast is ${ratio.toFixed(2)}`, element)
    }
  }
  return faults
}
