/** What the service should hold of one owner, as far as its answers have said. */
export class Owner {
    name;
    token;
    plants = new Map();
    /** Sent, and never answered: they may be there. */
    open = new Map();
    /** Positions that were learnt from Link headers. */
    cursors = new Map();
    /**
     * Set when readers may differ on what was sent with its token: then its list is only looked at,
     * not compared.
     */
    blurred = false;
    #sorted;
    constructor(name, token) {
        this.name = name;
        this.token = token;
    }
    get isCertain() {
        return this.open.size === 0 && !this.blurred;
    }
    keep(id, plant) {
        if (this.plants.has(id))
            return;
        this.plants.set(id, plant);
        this.#sorted = undefined;
    }
    mayHold(id, plant) {
        if (this.plants.has(id))
            return;
        this.open.set(id, [...(this.open.get(id) ?? []), plant]);
    }
    /** Ids behind a position, ascending. */
    idsAfter(after) {
        this.#sorted ??= [...this.plants.keys()].sort((a, b) => (a < b ? -1 : 1));
        return after === undefined ? this.#sorted : this.#sorted.filter((id) => id > after);
    }
    /**
     * Whether a whole list can be this owner's: each plant that is kept, in the order of ids, and any
     * of the open ones between.
     */
    explains(listed) {
        if (this.blurred)
            return true;
        const ids = [...new Set([...this.plants.keys(), ...this.open.keys()])].sort((a, b) => a < b ? -1 : 1);
        // How much of the list may have been passed.
        let reached = new Set([0]);
        for (const id of ids) {
            const next = new Set();
            const kept = this.plants.get(id);
            for (const at of reached) {
                const shown = listed[at];
                if (shown &&
                    (kept ? [kept] : (this.open.get(id) ?? [])).some((plant) => isSame(plant, shown)))
                    next.add(at + 1);
                if (!kept)
                    next.add(at);
            }
            reached = next;
        }
        return reached.has(listed.length);
    }
}
/**
 * An owner that all connections write to at once. The id settles the content, so that nobody is
 * ever refused.
 */
export class SharedOwner {
    name;
    token;
    sent = new Set();
    acknowledged = new Set();
    constructor(name, token) {
        this.name = name;
        this.token = token;
    }
    static plant(id) {
        return { name: `${id} of all` };
    }
    /** What is wrong with a list, given what had been acknowledged before it was asked for. */
    flaw(listed, before) {
        let last = -1;
        let found = 0;
        for (const { name, tag } of listed) {
            const id = Number.parseInt(name, 10);
            if (tag !== undefined || name !== SharedOwner.plant(id).name || !this.sent.has(id))
                return `lists ${JSON.stringify(name)}, which was never sent`;
            if (id <= last)
                return `lists ${id} behind ${last}`;
            if (before.has(id))
                found += 1;
            last = id;
        }
        return found < before.size
            ? `lists ${found} of the ${before.size} plants that were acknowledged before`
            : undefined;
    }
}
export function isSame(a, b) {
    return a.name === b.name && a.tag === b.tag;
}
