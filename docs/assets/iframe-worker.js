// The search runs in a worker, which browsers refuse to a page that was opened as a file. There it
// runs in a hidden frame instead; on a web server this does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.unsent = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)

      // Opened and closed by hand, so that no browser replaces the empty page later.
      const inside = this.frame.contentWindow
      inside.document.open()
      inside.document.write("<!doctype html><title>search</title>")
      inside.document.close()

      // What the script posts comes out here; what it is sent goes by the frame's own way.
      const send = inside.postMessage.bind(inside)
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))

      const script = inside.document.createElement("script")
      script.onload = () => {
        this.send = data => send(data, "*")
        this.unsent.splice(0).forEach(this.send)
      }
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error"))
      script.src = url
      inside.document.head.append(script)
    }

    postMessage(data) {
      if (this.send) this.send(data)
      else this.unsent.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
