import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { ClientTiming } from '../../../dist/store/etcd/client.js'
import { ask, createAgent } from '../../../dist/store/etcd/gateway.js'
import type { EtcdStore } from '../../../dist/store/etcd/store.js'
import { readAll } from '../../contract/store.contract.ts'
import { ALL, configOf, NO_TLS, openStore, PATIENT } from '../../support/etcd-store.ts'
import { serving } from '../../support/serving.ts'
import { PATIENCE_MS, until } from '../../support/time.ts'

const RUNNING_MAX = 64
const ANSWER_MAX_BYTES = 4 * 1024 * 1024
const HEADER = { header: { revision: '7' } }

/** `kvs` of an answer: alice's plants from an id on, each with this name. */
function kvs(first: number, count: number, name: string): unknown[] {
  const base64 = (text: string): string => Buffer.from(text).toString('base64')
  return Array.from({ length: count }, (_, i) => ({
    key: base64(`plants/YWxpY2U/${(2n ** 63n + BigInt(first + i)).toString(16)}`),
    value: base64(JSON.stringify({ name })),
    create_revision: '5',
  }))
}

/**
 * A store over a server that answers lists and creates as the function says (undefined: never), and
 * every readiness probe.
 */
async function storeOver(
  t: TestContext,
  answer: (body: string) => object | undefined,
  timing: ClientTiming = PATIENT,
  onProbe = (): void => {},
): Promise<EtcdStore> {
  const endpoint = await serving(t, (req, res) => {
    let body = ''
    req.setEncoding('utf8').on('data', (text: string) => (body += text))
    req.on('end', () => {
      const isProbe = body.includes('request_delete_range')
      if (isProbe) onProbe()
      const members = isProbe ? {} : answer(body)
      if (members) res.end(JSON.stringify({ ...HEADER, ...members }))
    })
  })
  return openStore(t, { ...configOf([endpoint]), timing })
}

test('64 calls run at once; the probe of readiness needs no place', async (t) => {
  let running = 0
  let probes = 0
  const store = await storeOver(
    t,
    (body) => {
      running += body.split('range_end').length - 1
      return undefined
    },
    { attemptMs: 60_000, callMs: 60_000 },
    () => (probes += 1),
  )
  const before = probes
  const lists = Array.from({ length: 2 * RUNNING_MAX }, (_, i) =>
    readAll(store.list(`owner ${i}`, ALL)),
  )
  const ended = Promise.allSettled(lists)
  await until('readiness is probed', () => probes >= before + 2)
  assert.equal(running, RUNNING_MAX)
  assert.equal(store.unavailableReason(), undefined)
  await store.close()
  assert.ok((await ended).every(({ status }) => status === 'rejected'))
})

test('two long answers of etcd are not read in one tick', async (t) => {
  const text = JSON.stringify({ ...HEADER, kvs: kvs(0, 2000, 'x') })
  const origin = await serving(t, (_, res) => res.end(text))
  const agent = createAgent(false, NO_TLS)
  t.after(() => agent.destroy())
  let tick = 0
  let isCounting = true
  const count = (): void => {
    tick += 1
    if (isCounting) setImmediate(count)
  }
  setImmediate(count)
  const limits = { timeoutMs: PATIENCE_MS, maxBytes: Infinity }
  const attempt = { agent, origin, path: '/x', message: {}, token: '', ...limits }
  const answers = Array.from({ length: 32 }, () => ask(attempt).then(() => tick))
  const ticks = await Promise.all(answers)
  isCounting = false
  assert.equal(new Set(ticks).size, ticks.length)
})

/** A server of etcd's ranges: alice has this many plants, each with a name of this length. */
function rangesOf(count: number, nameChars: number) {
  const limits: number[] = []
  const answer = (body: string): object => {
    // The store's own requests.
    const { key, limit } = JSON.parse(body) as { readonly key: string; readonly limit: string }
    const [, digits] = /\/([0-9a-f]{16})/.exec(Buffer.from(key, 'base64').toString()) ?? []
    const from = digits === undefined ? 0 : Number(BigInt(`0x${digits}`) - 2n ** 63n) + 1
    limits.push(Number(limit))
    const entries = kvs(from, Math.min(Number(limit), count - from), 'x'.repeat(nameChars))
    return { kvs: entries, more: from + entries.length < count, count: String(count - from) }
  }
  return { limits, answer }
}

test('ranges aim at 512 KiB, also of tiny plants', async (t) => {
  const { limits, answer } = rangesOf(20_000, 0)
  const store = await storeOver(t, answer)
  assert.equal((await readAll(store.list('alice', ALL))).length, 20_000)
  assert.deepEqual(limits.slice(0, 3), [32, 128, 512])
  const largest = JSON.stringify(kvs(0, Math.max(...limits), '')).length
  assert.ok(largest > 400_000 && largest < 600_000, `${largest}`)
})

test('an answer above 4 MiB is asked for again with fewer plants', async (t) => {
  // 32 of them are longer, 4 are not.
  const { limits, answer } = rangesOf(6, 700_000)
  const store = await storeOver(t, answer)
  const plants = await readAll(store.list('alice', ALL))
  assert.equal(plants.length, 6)
  assert.deepEqual(limits, [32, 4, 1, 1])
})

test('one plant may be longer than 4 MiB, and 32 MiB are too much', async (t) => {
  for (const [nameChars, isListed] of [
    [ANSWER_MAX_BYTES, true],
    [26_000_000, false],
  ] as const) {
    const { limits, answer } = rangesOf(1, nameChars)
    // A busy machine may take seconds to write so long an answer.
    const store = await storeOver(t, answer, { attemptMs: 60_000, callMs: 60_000 })
    const plants = readAll(store.list('alice', ALL))
    if (isListed) assert.equal((await plants)[0]?.name.length, nameChars)
    else await assert.rejects(plants, StoreUnavailable)
    assert.deepEqual(limits, [32, 4, 1])
  }
})

test('a close does not wait for the pages of lists that are being opened', async (t) => {
  let pages = 0
  // The page has no end.
  const store = await storeOver(t, () => ({
    kvs: kvs(32 * pages++, 32, ''),
    more: true,
    count: '9999999999',
  }))
  const list = readAll(store.list('alice', { after: undefined, limit: 2 ** 31 - 1 }))
  const refused = assert.rejects(list, StoreUnavailable)
  await until('pages are read', () => pages > 4)
  await store.close()
  await refused
})
