import { outcomeOf, plantOf, plantsOf } from './form.js';
import { valuesOf } from './http.js';
import { closesBehind, expectsContinue, judge } from './judge.js';
import { isSame, SharedOwner } from './model.js';
/** Where readers may differ, what may be answered at all. */
const LEGAL = new Set([
    200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 417, 431, 501, 507,
]);
/**
 * How long the service reads on, by its design, behind its last answer on a connection: a client
 * that is not done by then is reset, and may lose answers (RFC 9112 §9.6).
 */
const LINGER_MS = 1000;
/**
 * How long the service waits for a head, by its design, and with what a loaded machine adds to it.
 */
const [STALL_MIN_MS, STALL_MAX_MS] = [10_000, 25_000];
/** To be called before anything is sent: what others may see of it from then on. */
export function announce(readings, { realm, shared }) {
    for (const reading of readings) {
        if (reading.kind === 'unclear')
            for (const [, id] of reading.rest.matchAll(/"(\d+) of all"/g))
                for (const owner of shared.values())
                    owner.sent.add(Number(id));
        if (reading.kind !== 'request')
            continue;
        const { wish } = judge(reading, realm);
        if (wish?.kind === 'create')
            shared.get(wish.owner)?.sent.add(Number(wish.id));
    }
}
/** How many answers come without an end of what is sent. */
export function certainAnswers(readings) {
    const first = readings.findIndex((reading) => reading.kind !== 'request' || reading.broken.length > 0 || reading.doubts.length > 0);
    return first < 0 ? readings.length : first;
}
/**
 * Holds what came back against what was sent, and takes it over into the model. `before` is what
 * was acknowledged of the shared owners' plants before. Nothing is believed behind the first flaw.
 */
export function compare(readings, talk, world, before, killed) {
    let lost = false;
    const mayMiss = (unanswered) => talk.cut || killed || (lost = isLate(unanswered, talk, world));
    const flaw = talk.flaw !== undefined && !killed
        ? talk.flaw
        : findFlaw(readings, talk, world, before, mayMiss);
    return { flaw, lost };
}
/**
 * Whether answers are missing because the client was reset: not before its time, and only behind a
 * request that may have been the last.
 */
function isLate(unanswered, talk, world) {
    return (talk.isReset &&
        talk.tookMs >= LINGER_MS &&
        unanswered.some((reading) => mayBeLast(reading, world)));
}
function mayBeLast(reading, world) {
    if (reading.kind !== 'request')
        return true;
    const { errors, wish } = judge(reading, world.realm);
    return [...errors, ...(wish ? [200] : [])].some((outcome) => closesBehind(reading, outcome) !== false);
}
function findFlaw(readings, talk, world, before, mayMiss) {
    let next = 0;
    for (const [index, reading] of readings.entries()) {
        const answer = talk.answers[next];
        if (answer === undefined) {
            if (reading.kind !== 'unclear' && !mayMiss(readings.slice(index)))
                return `request ${index} is not answered, and the connection ended after ${Math.round(talk.tookMs)} ms ${talk.end}`;
            leaveOpen(readings.slice(index), world);
            return undefined;
        }
        try {
            if (reading.kind === 'unclear') {
                blur(reading.rest, world);
                for (const other of talk.answers.slice(next))
                    checkLoosely(other);
                return undefined;
            }
            const said = (answer.headers.get('connection') ?? []).includes('close');
            if (reading.kind === 'malformed') {
                const isHead = reading.mayBeHead && answer.framing === 'none';
                const outcome = outcomeOf(answer, isHead);
                if (!reading.errors.some((error) => (isHead ? Math.floor(error / 100) * 100 : error) === outcome))
                    throw new Error(`${outcome} instead of ${reading.errors.join(' or ')}`);
                if (!said)
                    throw new Error(`${outcome} without Connection: close`);
                if (outcome === 40801 && (talk.tookMs < STALL_MIN_MS || talk.tookMs > STALL_MAX_MS))
                    throw new Error(`${outcome} after ${Math.round(talk.tookMs)} ms`);
            }
            else {
                const outcome = checkAnswer(reading, answer, world, before);
                const closes = closesBehind(reading, outcome);
                if (closes !== 'either' && closes !== said)
                    throw new Error(`${outcome} ${said ? 'with' : 'without'} Connection: close`);
                if (answer.framing === 'close' && reading.version !== '1.0')
                    throw new Error('a body that ends with the connection');
            }
            next += 1;
            if (said || answer.framing === 'close')
                break;
        }
        catch (error) {
            return `request ${index}: ${error instanceof Error ? error.message : String(error)}`;
        }
    }
    if (talk.answers.length > next)
        return `${talk.answers.length} answers instead of ${next}`;
    return undefined;
}
function checkAnswer(request, answer, world, before) {
    const isHead = request.method === 'HEAD' && answer.framing === 'none';
    const outcome = outcomeOf(answer, isHead);
    const ids = valuesOf(request, 'request-id');
    const id = answer.headers.get('request-id')?.[0] ?? '';
    // What the parser breaks off it may answer without having read the rest.
    const isUsable = ids.length === 1 && /^[\x21-\x7e]{1,128}$/.test(ids[0] ?? '');
    if (isUsable ? id !== ids[0] && outcome !== 40001 && outcome !== 43101 : !/^[0-9a-f-]{36}$/.test(id))
        throw new Error(`the Request-Id ${id}`);
    if (answer.interim > (expectsContinue(request) && request.method === 'POST' ? 1 : 0))
        throw new Error('100 that was not asked for');
    const { errors, wish } = judge(request, world.realm);
    if (errors.some((error) => (isHead ? Math.floor(error / 100) * 100 : error) === outcome))
        return outcome;
    const expected = wish
        ? [...errors, ...grantWish(wish, request, answer, outcome, world, before)]
        : errors;
    if (!expected.includes(outcome) &&
        !(isHead && expected.some((error) => error > 999 && Math.floor(error / 100) * 100 === outcome)))
        throw new Error(`${outcome} instead of ${expected.join(' or ')}`);
    return outcome;
}
/** Outcomes that a good request may have; what a right one says is checked and taken over. */
function grantWish(wish, request, answer, outcome, world, before) {
    if (wish.kind === 'options')
        return [204];
    const shared = world.shared.get(wish.owner);
    const owner = world.owners.get(wish.owner);
    if (owner && !owner.isCertain)
        throw new Error(`the oracle does not know what ${owner.name} has, and should not have asked`);
    if (wish.kind === 'list') {
        if (shared) {
            const flaw = outcome === 200 && request.method === 'GET'
                ? shared.flaw(plantsOf(answer.body), before.get(wish.owner) ?? new Set())
                : undefined;
            if (flaw !== undefined)
                throw new Error(flaw);
            return [200];
        }
        return owner ? checkList(owner, wish, request, answer, outcome) : [];
    }
    const full = world.realm.mayBeFull ? [50701] : [];
    const isStored = outcome === 200;
    if (isStored &&
        !isSame(plantOf(JSON.parse(Buffer.from(answer.body, 'latin1').toString('utf8'))), wish.plant))
        throw new Error(`200 with ${answer.body.slice(0, 200)}`);
    if (shared) {
        if (isStored)
            shared.acknowledged.add(Number(wish.id));
        return [200, ...full];
    }
    if (!owner)
        return [];
    const kept = owner.plants.get(wish.id);
    if (kept)
        return [isSame(kept, wish.plant) ? 200 : 40901, ...full];
    if (isStored)
        owner.keep(wish.id, wish.plant);
    return [200, ...full];
}
function checkList(owner, { limit, after }, request, answer, outcome) {
    const from = after === undefined ? undefined : owner.cursors.get(after);
    if (after !== undefined && from === undefined)
        return [40012];
    if (outcome !== 200)
        return [200];
    const all = owner.idsAfter(from);
    const ids = limit === undefined ? all : all.slice(0, limit);
    if (request.method === 'GET') {
        const listed = plantsOf(answer.body);
        if (listed.length !== ids.length ||
            !ids.every((id, at) => isSame(owner.plants.get(id) ?? { name: '' }, listed[at] ?? { name: '' })))
            throw new Error(`${owner.name}'s list has ${listed.length} plants, and should have ${ids.length}: ${answer.body.slice(0, 500)}`);
    }
    const last = ids.at(-1);
    const links = answer.headers.get('link') ?? [];
    if (ids.length === all.length || last === undefined) {
        if (links.length > 0)
            throw new Error(`a whole list with Link: ${links.join(' and ')}`);
        return [200];
    }
    const [, linkLimit, cursor = ''] = /^<\?limit=(\d+)&after=([A-Za-z0-9_-]+)>; rel="next"$/.exec(links.join()) ?? [];
    if (Number(linkLimit) !== limit)
        throw new Error(`a list that is cut with Link: ${links.join(' and ')}`);
    if ((owner.cursors.get(cursor) ?? last) !== last)
        throw new Error(`one cursor for ${owner.cursors.get(cursor)} and ${last}`);
    owner.cursors.set(cursor, last);
    return [200];
}
/** Sent, and not answered: whatever creates something may have done so. */
function leaveOpen(readings, world) {
    for (const reading of readings) {
        if (reading.kind === 'unclear')
            blur(reading.rest, world);
        if (reading.kind !== 'request')
            continue;
        const { wish } = judge(reading, world.realm);
        if (wish?.kind === 'create')
            world.owners.get(wish.owner)?.mayHold(wish.id, wish.plant);
    }
}
function blur(rest, { realm, owners }) {
    for (const owner of owners.values())
        if (rest.includes(owner.token.slice(-40)) && realm.grants.has(owner.token))
            owner.blurred = true;
}
function checkLoosely(answer) {
    if (!LEGAL.has(answer.status))
        throw new Error(`the status ${answer.status}`);
    outcomeOf(answer, answer.framing === 'none');
}
