// What makes the pages live. Without this file they work, too: nothing here is needed to read or to
// write, and whatever a section shows was made and escaped by the server.
"use strict"

const root = document.documentElement
const shell = document.body.dataset.root || "/"

// --- live sections ------------------------------------------------------------------------------
// <section data-live="URL" data-part="rows" data-every="2000"> is fetched again and swapped, unless
// somebody is at work in it: with a field or button, an open detail, a selection or checked rows.

const SLOWEST = 30000
const SLOW = 1000 // an answer that takes longer makes work: what is beyond that is waited for ten times
let paused = sessionStorage.getItem("rowmq-paused") === "1"
let ended = false
let failing = 0

const isBusy = section => {
  const at = document.activeElement
  if (at && section.contains(at) && at.matches("input, select, textarea, button, summary")) return true
  if (section.querySelector("details[open], input:checked:not([data-all]), [data-hovered]")) return true
  const chosen = document.getSelection()
  return Boolean(chosen && !chosen.isCollapsed && section.contains(chosen.anchorNode))
}

const placesIn = section =>
  [...section.querySelectorAll(".table-wrap, pre")].map(box => [box.scrollLeft, box.scrollTop])

const swap = (section, html) => {
  const scrolled = placesIn(section)
  const focused = section.contains(document.activeElement) ? document.activeElement : null
  const links = focused ? [...section.querySelectorAll("a")] : []
  const nth = links.filter(link => link.href === focused.href).indexOf(focused)
  const fresh = new DOMParser().parseFromString(html, "text/html")
  section.replaceChildren(...fresh.body.childNodes)
  section.querySelectorAll(".table-wrap, pre").forEach((box, n) => {
    if (scrolled[n]) [box.scrollLeft, box.scrollTop] = scrolled[n]
  })
  if (focused && nth >= 0) {
    const alike = [...section.querySelectorAll("a")].filter(link => link.href === focused.href)
    if (alike[nth]) alike[nth].focus({ preventScroll: true })
  }
  prepare(section)
}

const tellOffline = () => {
  for (const note of document.querySelectorAll("[data-offline]")) note.hidden = failing === 0 || ended
}

// Who was signed out, or may not see this any more, is told so, and led to where they can sign in:
// that is where this same page leads to then.
const tellEnded = () => {
  ended = true
  tellOffline()
  for (const note of document.querySelectorAll("[data-ended]")) {
    note.hidden = false
    note.querySelector("a").href = location.href
  }
  for (const button of document.querySelectorAll("[data-pause]")) {
    button.disabled = true
    button.removeAttribute("aria-label")
    button.querySelector("span").textContent = "Ended"
  }
}

const refresh = async section => {
  const answer = await fetch(section.dataset.live, {
    headers: { "X-Fragment": section.dataset.part },
    credentials: "same-origin",
    redirect: "manual",
    signal: AbortSignal.timeout(15000),
  })
  if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) return false
  if (!answer.ok) throw new Error(String(answer.status))
  const html = await answer.text()
  if (!isBusy(section)) swap(section, html)
  return true
}

const keepLive = section => {
  const every = Number(section.dataset.every) || 2000
  let wait = every
  let failed = false
  const again = () => setTimeout(turn, wait)
  const turn = async () => {
    if (!section.isConnected || ended) return
    if (paused || document.hidden || isBusy(section)) return again()
    const begun = performance.now()
    try {
      if (!(await refresh(section))) return tellEnded()
      if (failed) failing -= 1
      failed = false
      wait = Math.max(every, 10 * (performance.now() - begun - SLOW))
    } catch {
      if (!failed) failing += 1
      failed = true
      wait = Math.min(wait * 2, SLOWEST)
    }
    tellOffline()
    again()
  }
  again()
}

// --- what a section needs when it has come -------------------------------------------------------

const prepare = within => {
  for (const button of within.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard
  for (const form of within.querySelectorAll("form[data-select]")) countChosen(form)
}

const EACH = "input[type=checkbox]:not([data-all], [data-found])"

const countChosen = form => {
  const boxes = [...form.querySelectorAll(EACH)]
  const chosen = boxes.filter(box => box.checked).length
  const isAll = form.querySelector("[data-found]:checked") !== null
  for (const text of form.querySelectorAll("[data-selected]")) text.textContent = isAll ? "all" : String(chosen)
  for (const button of form.querySelectorAll("[data-needs-choice]")) {
    const isNone = chosen === 0 && !isAll
    if (button.matches("summary")) button.setAttribute("aria-disabled", String(isNone))
    else button.disabled = isNone
  }
  for (const all of form.querySelectorAll("[data-all]")) {
    all.checked = chosen > 0 && chosen === boxes.length
    all.indeterminate = chosen > 0 && chosen < boxes.length
  }
}

document.addEventListener("change", event => {
  const box = event.target
  const form = box.closest && box.closest("form[data-select]")
  if (!form) return
  if (box.matches("[data-all]")) {
    for (const one of form.querySelectorAll(EACH)) one.checked = box.checked
  }
  countChosen(form)
})

document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]")
  if (!button) return
  const words = button.querySelector("span")
  const before = words.textContent
  await navigator.clipboard.writeText(button.dataset.copy)
  words.textContent = "Copied"
  setTimeout(() => { words.textContent = before }, 1500)
})

// A summary cannot be disabled: what needs a choice opens no question without one.
document.addEventListener("click", event => {
  if (event.target.closest("summary[aria-disabled=true]")) event.preventDefault()
})

// Only one question is open at a time; Escape and a click elsewhere close it.
const closeDetails = except => {
  for (const open of document.querySelectorAll("details.confirm[open], details.menu[open]")) {
    if (!except || !open.contains(except)) open.open = false
  }
}

document.addEventListener("click", event => closeDetails(event.target))

// --- light and dark, live and paused -------------------------------------------------------------

const remember = (name, value) => {
  const secure = location.protocol === "https:" ? "; Secure" : ""
  document.cookie = `${name}=${value}; Path=${shell}; Max-Age=31536000; SameSite=Lax${secure}`
}

for (const button of document.querySelectorAll("[data-theme-switch]")) {
  const isDark = () =>
    (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark"
  const name = () => button.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark")
  button.hidden = false
  name()
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark"
    remember("rowmq_theme", root.dataset.theme)
    name()
  })
}

const sections = document.querySelectorAll("[data-live]")
for (const button of document.querySelectorAll("[data-pause]")) {
  const tell = () => {
    button.setAttribute("aria-pressed", String(paused))
    button.setAttribute("aria-label", paused ? "Paused: go on updating" : "Live: pause updating")
    button.querySelector("span").textContent = paused ? "Paused" : "Live"
  }
  button.hidden = sections.length === 0
  tell()
  button.addEventListener("click", () => {
    paused = !paused
    sessionStorage.setItem("rowmq-paused", paused ? "1" : "0")
    tell()
  })
}

// --- keys: / to search, g and a letter to go to a page ------------------------------------------

let going = 0

document.addEventListener("keydown", event => {
  if (event.key === "Escape") {
    const open = document.querySelector("details.confirm[open], details.menu[open]")
    closeDetails()
    if (open) open.querySelector("summary").focus()
    return
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return
  if (event.key === "/") {
    const search = document.querySelector("[data-search], form[role=search] input:not([type=hidden])")
    if (search) {
      event.preventDefault()
      search.focus()
    }
  } else if (event.key === "g") {
    going = Date.now()
  } else if (Date.now() - going < 1200 && /^[a-z]$/.test(event.key)) {
    going = 0
    const link = document.querySelector(`[data-go="${event.key}"]`)
    if (link) location.assign(link.href)
  }
})

// --- charts: what was it there? ------------------------------------------------------------------

const readAt = (plot, clientX) => {
  const svg = plot.querySelector("svg")
  const box = svg.getBoundingClientRect()
  const rows = svg.dataset.values.split(";")
  const part = Math.min(Math.max((clientX - box.left) / box.width, 0), 1)
  const nth = Math.round(part * (rows.length - 1))
  const readout = plot.querySelector(".readout")
  readout.textContent = rows[nth] || ""
  readout.hidden = !rows[nth]
  const line = svg.querySelector(".cursor")
  const x = String((nth / Math.max(rows.length - 1, 1)) * 300)
  line.setAttribute("x1", x)
  line.setAttribute("x2", x)
  line.removeAttribute("visibility")
}

const leave = except => {
  for (const plot of document.querySelectorAll(".plot[data-read]")) {
    if (plot === except) continue
    delete plot.dataset.hovered
    delete plot.dataset.read
    plot.querySelector(".readout").hidden = true
    plot.querySelector(".cursor").setAttribute("visibility", "hidden")
  }
}

const point = event => {
  const plot = event.target.closest && event.target.closest(".plot")
  leave(plot)
  if (!plot || !plot.querySelector("svg[data-values]")) return
  plot.dataset.hovered = plot.dataset.read = "1"
  readAt(plot, event.clientX)
}

document.addEventListener("pointermove", point)
document.addEventListener("pointerdown", point)

// A finger that is lifted points nowhere: what it read stays there until the section is renewed.
for (const name of ["pointerup", "pointercancel"]) {
  document.addEventListener(name, event => {
    if (event.pointerType === "mouse") return
    for (const plot of document.querySelectorAll(".plot[data-hovered]")) delete plot.dataset.hovered
  })
}
root.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") leave(null) })
window.addEventListener("blur", () => leave(null))

prepare(document)
sections.forEach(keepLive)
