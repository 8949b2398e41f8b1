// URL state: the address names the decision at the cursor; opened again, it leads back to that decision.

const PLACES = 10_000;
const WAIT_MS = 250;
const FORM = /^#routing:(\d+)(?:\+(\d+))?$/;

export class UrlState {
  constructor(store, view, say) {
    Object.assign(this, { store, view, say });
    this.wanted = named(location.hash); // the decision to show as soon as it is loaded
    this.shown = null;
    this.timer = null; // of a change of the address
    if (location.search) history.replaceState(null, "", location.pathname + location.hash); // no token stays in the history
    window.addEventListener("hashchange", () => this.follow());
    view.addEventListener("picked", () => (this.wanted = null));
    view.addEventListener("cursor", () => this.keep());
  }

  // Somebody typed another one, or goes back to it.
  follow() {
    const wanted = named(location.hash);
    if (!wanted) return; // a link within the page
    clearTimeout(this.timer);
    this.timer = null;
    this.view.follow(false);
    this.wanted = wanted;
    this.go();
  }

  // To where the address leads, if that is there.
  go() {
    const { store, view, wanted } = this;
    if (!wanted) return;
    const at = store.indexOf(wanted.n);
    if (at >= 0 && (wanted.request ?? store.request[at]) === store.request[at]) {
      this.wanted = null;
      view.select(at);
    } else if (at >= 0 || store.complete) {
      this.wanted = null;
      this.say(wanted.request ? `${wanted.request}, which was shown, is not in the log any more` : `no decision stands at ${text(wanted.n)}: another one is shown`);
      this.keep();
    }
  }

  keep() {
    const { store, view } = this;
    if (view.n === null) return;
    this.shown = { n: view.n, request: store.request[view.index] };
    this.timer ??= setTimeout(() => this.write(), WAIT_MS); // behind what people wait for; browsers bear only so many
  }

  write() {
    this.timer = null;
    history.replaceState(null, "", `${location.pathname}#${text(this.shown.n)}`);
  }

  // All is read anew, perhaps from another log: back to what was shown, unless the end is followed.
  restore() {
    this.wanted ??= this.view.following ? null : this.shown;
  }
}

function named(hash) {
  const found = FORM.exec(hash);
  return found && { n: Number(found[1]) * PLACES + Number(found[2] ?? 0), request: null };
}

const text = (n) => `routing:${Math.floor(n / PLACES)}${n % PLACES ? `+${n % PLACES}` : ""}`;
