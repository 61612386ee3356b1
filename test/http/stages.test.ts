import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import type { Plant } from '../../dist/plants/plant.js'
import { ALICE, listOf, startBare } from '../support/bare.ts'
import { sampled } from '../support/scale.ts'
import { until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { CHUNKED, head, postBytes, posting, Wire } from '../support/wire.ts'

/* Conversations that are cut at any byte. The owner of a request is its token. */

const BODY = '{"id":2,"name":"chunked"}'
const CHUNKS = `8;a=b\r\n${BODY.slice(0, 8)}\r\n11\r\n${BODY.slice(8)}\r\n0\r\nX: y\r\n\r\n`

interface Conversation {
  readonly bytes: string
  readonly answers: readonly unknown[]
  readonly ends: readonly number[]
}

/**
 * One of each kind of request, its verdict, and its end. Each try has an owner without plants. The
 * one with a chunked body is first: it would not be served if it had to wait.
 */
function conversation(bearer: string): Conversation {
  const requests: readonly (readonly [string, unknown])[] = [
    [posting([CHUNKED], { token: bearer }) + CHUNKS, 200],
    [postBytes({ id: 1, name: 'whole' }, { token: bearer }), 200],
    [`${posting(['Content-Length: 1'], { token: undefined })}a`, 'tokenMissing'],
    [head('GET', '/plants', { token: bearer }), 200],
  ]
  let end = 0
  return {
    bytes: requests.map(([bytes]) => bytes).join(''),
    answers: requests.map(([, answer]) => answer),
    ends: requests.map(([bytes]) => (end += bytes.length)),
  }
}

const EVERYWHERE = Array.from({ length: conversation('o0000').bytes.length - 1 }, (_, at) => at + 1)
let owners = 0

/** Runs one try for each place, 16 at a time. */
async function atEach(
  places: readonly number[],
  run: (place: number, owner: string, all: Conversation) => Promise<void>,
): Promise<void> {
  const left = [...places]
  const runAll = async (): Promise<void> => {
    for (let place = left.pop(); place !== undefined; place = left.pop()) {
      const owner = `o${String(owners++).padStart(4, '0')}`
      await run(place, owner, conversation(owner))
    }
  }
  await Promise.all(Array.from({ length: 16 }, runAll))
}

for (const isLate of [false, true])
  test(`stages: cut in two, tokens verified ${isLate ? 'later' : 'at once'}`, async (t) => {
    const plants = new Map<string, Plant[]>()
    const bare = await startBare(t, {
      authenticate: (owner) => {
        const caller = { ...ALICE, owner }
        return isLate ? sleep(1, caller) : caller
      },
      store: {
        create(owner, { name }) {
          plants.set(owner, [...(plants.get(owner) ?? []), { name }])
          return Promise.resolve('stored')
        },
        list: (owner) => listOf([plants.get(owner) ?? []]),
      },
    })
    const { port, connections } = bare
    const places = sampled(EVERYWHERE, isLate ? 12 : 8)
    const namesOf = (owner: string): string[] =>
      (plants.get(owner) ?? []).map(({ name }) => name).sort()

    await t.test('four requests cut in two are the same four requests', async () => {
      // A first request is cut on a new connection; the others come after requests anyway.
      const used: { readonly wire: Wire; readonly answered: number }[] = []
      await atEach(places, async (place, owner, { bytes, answers, ends }) => {
        const isLater = place > (ends[0] ?? 0)
        const { wire, answered } = (isLater ? used.pop() : undefined) ?? {
          wire: await Wire.to(port),
          answered: 0,
        }
        wire.write(bytes.slice(0, place))
        await yieldTick()
        await yieldTick()
        const all = await wire.write(bytes.slice(place)).answers(answered + answers.length)
        assert.deepEqual(all.slice(answered).map(verdict), answers, String(place))
        assert.deepEqual(JSON.parse(all.at(-1)?.body ?? ''), plants.get(owner))
        assert.deepEqual(namesOf(owner), ['chunked', 'whole'])
        if (isLater) used.push({ wire, answered: all.length })
        else wire.destroy()
      })
      for (const { wire } of used) wire.destroy()
    })

    await t.test('an end: each whole request is answered, and 400 for a part', () =>
      atEach(places, async (place, owner, { bytes, answers, ends }) => {
        const wire = await Wire.to(port)
        const whole = ends.filter((end) => end <= place).length
        // It is answered before its body, of one byte: nothing follows then.
        const isRefused = place === (ends[2] ?? 0) - 1
        const found = await wire.write(bytes.slice(0, place)).halfClose().allAnswers()
        const expected = answers.slice(0, isRefused ? whole + 1 : whole)
        const isPart = place > (ends[whole - 1] ?? 0) && !isRefused
        if (isPart) expected.push('malformedRequest')
        assert.deepEqual(found.map(verdict), expected, String(place))
        assert.equal(wire.error, undefined)
        wire.destroy()
        assert.deepEqual(namesOf(owner), ['chunked', 'whole'].slice(0, whole), String(place))
      }),
    )

    await t.test('a reset: only whole requests have an effect', async () => {
      const cut: (() => void)[] = []
      await atEach(places, async (place, owner, { bytes, ends }) => {
        const wire = await Wire.to(port)
        wire.write(bytes.slice(0, place))
        if (place % 2 === 0) await yieldTick()
        if (place % 5 === 0) await sleep(2)
        wire.socket.resetAndDestroy()
        cut.push(() => {
          const whole = ends.filter((end) => end <= place).length
          const kept = namesOf(owner)
          const most = ['chunked', 'whole'].slice(0, whole)
          assert.deepEqual(kept, most.slice(0, kept.length), String(place))
        })
      })
      await until('the service has seen each reset', () => connections.sockets.length === 0)
      for (const check of cut) check()
    })

    await t.test('after all of them no request, body or response is held', async () => {
      const { bodies, responses } = bare
      const held = () => [connections.active, bodies.held, responses.held]
      await until('nothing is held', () => held().every((count) => count === 0))
    })
  })
