import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { Plant } from '../../dist/plants/plant.js'
import { ALICE, listOf, startBare } from '../support/bare.ts'
import { call } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

/** One place of so many, where each costs a sync. It shares no factor with the divisors below. */
const SHARE = THOROUGH ? 1 : 7
const TYPE = 'Content-Type: application/json'
const LINES = [TYPE, 'Transfer-Encoding: chunked']
const LENGTH = 'Content-Length: 1'
const BODY = '{"id":2,"name":"chunked"}'

/** What is under test: where it listens, its tokens, and that one place of so many is tried. */
interface Stage {
  readonly port: number
  readonly bearerOf: (owner: string) => string
  readonly every: number
  /** The owner's plants, as text. */
  readonly keptOf: (owner: string) => string | Promise<string>
  readonly openConnections: () => Promise<number>
}

interface Conversation {
  readonly bytes: string
  readonly answers: readonly unknown[]
  readonly ends: readonly number[]
}

/**
 * One of each kind of request, its verdict, and its end. Each try has an owner without plants. The
 * one with a chunked body is first: it would not be served if it had to wait.
 */
function conversation(owner: string, bearerOf: Stage['bearerOf']): Conversation {
  const bearer = bearerOf(owner)
  const refused = head('POST', '/plants', { token: undefined, lines: [TYPE, LENGTH] })
  const requests: readonly (readonly [string, unknown])[] = [
    [
      head('POST', '/plants', { token: bearer, lines: LINES }) +
        `8;a=b\r\n${BODY.slice(0, 8)}\r\n11\r\n${BODY.slice(8)}\r\n0\r\nX: y\r\n\r\n`,
      200,
    ],
    [postBytes({ id: 1, name: 'whole' }, { token: bearer }), 200],
    [`${refused}a`, 'tokenMissing'],
    [head('GET', '/plants', { token: bearer }), 200],
  ]
  let end = 0
  return {
    bytes: requests.map(([bytes]) => bytes).join(''),
    answers: requests.map(([, answer]) => answer),
    ends: requests.map(([bytes]) => (end += bytes.length)),
  }
}

async function cutAnywhere(t: TestContext, stage: Stage): Promise<void> {
  const { port, bearerOf, every, keptOf, openConnections } = stage
  let owners = 0
  const { length } = conversation('o0000', bearerOf).bytes
  /** Runs one try for each place, 16 at a time. */
  const atEach = async (
    places: readonly number[],
    run: (place: number, owner: string) => Promise<void>,
  ): Promise<void> => {
    const left = [...places]
    await Promise.all(
      Array.from({ length: 16 }, async () => {
        for (let place = left.pop(); place !== undefined; place = left.pop())
          await run(place, `o${String(owners++).padStart(4, '0')}`)
      }),
    )
  }
  const everywhere = Array.from({ length: length - 1 }, (_, at) => at + 1).filter(
    (at) => at % every === 0,
  )
  /** One of three, unless all are tried. */
  const third = (remainder: number): readonly number[] =>
    every === 1 ? everywhere : everywhere.filter((at) => at % 3 === remainder)

  await t.test('four requests cut in two at any byte are the same four requests', async () => {
    // A first request is cut on a new connection; the others come after requests anyway.
    const used: { readonly wire: Wire; readonly answered: number }[] = []
    await atEach(everywhere, async (place, owner) => {
      const { bytes, answers, ends } = conversation(owner, bearerOf)
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
      const names = (JSON.parse(all.at(-1)?.body ?? '') as Plant[]).map(({ name }) => name)
      assert.deepEqual(names.sort(), ['chunked', 'whole'])
      if (isLater) used.push({ wire, answered: all.length })
      else wire.destroy()
    })
    for (const { wire } of used) wire.destroy()
  })

  await t.test('an end at any byte: each whole request is answered, and 400 for a part', () =>
    atEach(third(0), async (place, owner) => {
      const { bytes, answers, ends } = conversation(owner, bearerOf)
      const wire = await Wire.to(port)
      const whole = ends.filter((end) => end <= place).length
      // It is answered before its body, of one byte: nothing follows then.
      const isRefused = place === (ends[2] ?? 0) - 1
      const found = await wire.write(bytes.slice(0, place)).halfClose().allAnswers()
      assert.deepEqual(
        found.map(verdict),
        [
          ...answers.slice(0, isRefused ? whole + 1 : whole),
          ...(place > (ends[whole - 1] ?? 0) && !isRefused ? ['malformedRequest'] : []),
        ],
        String(place),
      )
      assert.equal(wire.error, undefined)
      wire.destroy()
      const kept = await keptOf(owner)
      assert.deepEqual(
        [kept.includes('chunked'), kept.includes('whole')],
        [whole > 0, whole > 1],
        String(place),
      )
    }),
  )

  await t.test('a reset at any byte: only whole requests have an effect', async () => {
    const cut: (readonly [place: number, owner: string])[] = []
    await atEach(third(1), async (place, owner) => {
      const wire = await Wire.to(port)
      wire.write(conversation(owner, bearerOf).bytes.slice(0, place))
      if (place % 2 === 0) await yieldTick()
      if (place % 5 === 0) await sleep(2)
      wire.socket.resetAndDestroy()
      cut.push([place, owner])
    })
    await until('the service has seen each reset', async () => (await openConnections()) === 0)
    for (const [place, owner] of cut) {
      const { ends } = conversation(owner, bearerOf)
      const kept = await keptOf(owner)
      assert.ok(!kept.includes('chunked') || place >= (ends[0] ?? 0), String(place))
      assert.ok(
        !kept.includes('whole') || (place >= (ends[1] ?? 0) && kept.includes('chunked')),
        String(place),
      )
    }
  })
}

test('stages: HTTP alone, cut at every byte', async (t) => {
  const plants = new Map<string, Plant[]>()
  const { port, server } = await startBare(t, {
    authenticate: (owner) => ({ ...ALICE, owner }),
    store: {
      create(owner, { name }) {
        plants.set(owner, [...(plants.get(owner) ?? []), { name }])
        return Promise.resolve('stored')
      },
      list: (owner) => listOf([plants.get(owner) ?? []]),
    },
  })
  await cutAnywhere(t, {
    port,
    bearerOf: (owner) => owner,
    every: 1,
    keptOf: (owner) => JSON.stringify(plants.get(owner) ?? []),
    openConnections: promisify(server.getConnections.bind(server)),
  })
})

test('stages: the whole service, cut at any byte', async (t) => {
  const { port, adminPort } = await startService(t, { logLevel: 'silent' })
  await cutAnywhere(t, {
    port,
    bearerOf: token,
    every: SHARE,
    keptOf: async (owner) => (await call(port, { token: token(owner) })).text,
    openConnections: async () => (await scrape(adminPort)).value('plant_store_connections'),
  })

  await t.test('after all of them no connection, request, body or write is held', async () => {
    const zero = [
      'plant_store_connections',
      'http_server_active_requests',
      'plant_store_held_body_bytes',
    ]
    await until('nothing is held', async () => {
      const found = await scrape(adminPort)
      return zero.every((name) => found.value(name) === 0)
    })
  })
})
