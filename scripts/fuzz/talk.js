import { connect } from 'node:net';
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises';
import { AnswerReader } from './answers.js';
/**
 * No answer takes so long, on a loaded machine either: the service itself waits 30 s for a request.
 */
const PATIENCE_MS = 35_000;
/** Between the bytes of a client that stalls. */
const STALL_MS = 500;
/**
 * Sends a script and takes down what comes back. `certain` answers come without an end of what is
 * sent.
 */
export async function talk(port, script, certain, isHead) {
    const startedAt = performance.now();
    const reader = new AnswerReader(isHead);
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
    let flaw;
    let ended = false;
    let over = false;
    let wake = () => { };
    const attempt = (action) => {
        try {
            action();
        }
        catch (error) {
            flaw ??= error instanceof Error ? error.message : String(error);
            socket.destroy();
        }
    };
    socket.setEncoding('latin1');
    socket.on('data', (text) => {
        attempt(() => reader.push(text));
        if (reader.answers.length >= certain)
            wake();
    });
    socket.on('end', () => {
        ended = true;
        attempt(() => reader.end());
        socket.end();
        wake();
    });
    if (script.readsLate)
        socket.pause();
    // A reset is told by what is missing.
    let error;
    socket.on('error', ({ message }) => (error = message));
    const closed = new Promise((resolve) => {
        socket.on('close', () => {
            over = true;
            wake();
            resolve();
        });
    });
    const patience = setTimeout(() => {
        flaw ??= `no end after ${PATIENCE_MS} ms, and ${reader.answers.length} answers; then ${JSON.stringify(reader.rest.slice(0, 200))}`;
        socket.destroy();
    }, PATIENCE_MS);
    const cut = script.ending === 'destroy' || script.ending === 'reset';
    const stalls = script.ending === 'stall';
    let sent = 0;
    for (const end of [...script.cuts, script.text.length]) {
        const until = cut || stalls ? Math.min(end, script.sendOnly) : end;
        if (over || until <= sent)
            continue;
        socket.write(script.text.slice(sent, until), 'latin1');
        sent = until;
        if (end < script.text.length)
            await (script.pauseMs > 0 ? sleep(script.pauseMs) : yieldTick());
    }
    socket.resume();
    for (; stalls && !ended && !over; sent++) {
        await sleep(STALL_MS);
        if (!ended && !over)
            socket.write(script.text.slice(sent, sent + 1), 'latin1');
    }
    if (script.ending === 'half-close' || stalls)
        socket.end();
    else if (script.ending === 'answers-first') {
        if (reader.answers.length < certain && !ended && !over)
            await new Promise((resolve) => (wake = resolve));
        socket.end();
    }
    else {
        await (script.pauseMs > 0 ? sleep(script.pauseMs) : yieldTick());
        if (script.ending === 'destroy')
            socket.destroy();
        else
            socket.resetAndDestroy();
    }
    await closed;
    clearTimeout(patience);
    return {
        answers: reader.answers,
        cut,
        end: `${ended ? 'in peace' : 'without an end'}${error === undefined ? '' : `, ${error}`}; ${JSON.stringify(reader.rest.slice(0, 100))}`,
        isReset: error !== undefined,
        tookMs: performance.now() - startedAt,
        flaw,
    };
}
