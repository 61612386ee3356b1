import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { Ledger, plantOf } from '../support/ledger.ts'
import {
  announce,
  compare,
  type Heard,
  SHARED_TEXT,
  type World,
} from '../support/oracle/compare.ts'
import { ROUTES } from '../support/oracle/operations.ts'
import { Owner } from '../support/oracle/owner.ts'
import { Realm } from '../support/oracle/realm.ts'
import { readRequests } from '../support/oracle/requests.ts'
import type { WireAnswer } from '../support/response.ts'

function worldOf(name: string): { readonly world: World; readonly owner: Owner } {
  const [realm] = Realm.all()
  const owner = new Owner(name, realm.tokenOf(name, 'plants'))
  const owners = new Map([[name, owner]])
  return { world: { realm, owners, shared: new Map(), ledger: new Ledger() }, owner }
}

function get({ token }: Owner, lines = ''): string {
  return `GET /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n${lines}\r\n`
}

function post(owner: Owner, body: string): string {
  const lines = `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n`
  return get(owner, lines).replace('GET', 'POST') + body
}

function listed(body: string): WireAnswer {
  const headers = new Map([
    ['cache-control', ['no-store']],
    ['x-content-type-options', ['nosniff']],
    ['request-id', ['4bf92f35-77b3-4da6-a3ce-929d0e0e4736']],
    ['date', ['Thu, 01 Jan 1970 00:00:00 GMT']],
    ['content-type', ['application/json']],
  ])
  return { status: 200, version: '1.1', headers, body, framing: 'length', interim: 0 }
}

/** What is wrong if this was sent, and the answers are these lists. */
function judged(text: string, world: World, lists: readonly string[], heard: Partial<Heard> = {}) {
  const usual = { cut: false, end: '', isReset: false, tookMs: 1, flaw: undefined }
  const all: Heard = { ...usual, answers: lists.map(listed), ...heard }
  const certain = new Map<string, ReturnType<Ledger['certain']>>()
  for (const name of world.shared.keys()) certain.set(name, world.ledger.certain(name))
  return compare(readRequests(text), all, world, certain, false)
}

test('oracle: it knows every path and method of the description', () => {
  const file = new URL('../../src/api/openapi.json', import.meta.url)
  // A test compares the file with the table of operations.
  const { paths } = JSON.parse(readFileSync(file, 'utf8')) as {
    readonly paths: Readonly<Record<string, object>>
  }
  const known = ROUTES.map(({ path, allow }) => [path, allow.toLowerCase().split(', ').sort()])
  const described = Object.entries(paths).map(([path, { ...methods }]) => {
    const names = Object.keys(methods).filter((method) => method !== 'parameters')
    return [path, names.sort()]
  })
  assert.deepEqual(known.sort(), described.sort())
})

test('oracle: a create without an answer may be listed or not', () => {
  const { world, owner } = worldOf('other 24 plants')
  assert.equal(judged(get(owner), world, ['[]']).flaw, undefined)
  const sent = post(owner, '{"id":-70,"name":"-70 0"}')
  assert.equal(judged(sent, world, [], { cut: true }).flaw, undefined)
  assert.equal(owner.isCertain, false)
  const lists = [[], ['-70 0'], ['-70 1'], ['-70 0', '-70 0']]
  const explained = lists.map((names) => owner.explains(names.map((name) => ({ name }))))
  assert.deepEqual(explained, [true, true, false, false])
  for (const list of ['[]', '[{"name":"-70 0"}]'])
    assert.match(judged(get(owner), world, [list]).flaw ?? '', /should not have asked/)
})

test('oracle: a list with a plant more or less than its owner has is wrong', () => {
  const { world, owner } = worldOf('known')
  owner.keep(7n, { name: 'a' })
  const a = '{"name":"a"}'
  assert.equal(judged(get(owner), world, [`[${a}]`]).flaw, undefined)
  for (const list of ['', `${a},${a}`, '{"name":"b"}', '{"name":"a","tag":""}'])
    assert.match(judged(get(owner), world, [`[${list}]`]).flaw ?? '', /known's list has/)
})

test('oracle: a reset excuses lost answers only after one second and a last request', () => {
  const { world, owner } = worldOf('reset')
  const usual = get(owner)
  const last = get(owner, 'Connection: close\r\n')
  for (const [text, tookMs, lost] of [
    [last, 1000, true],
    [last, 999, false],
    [usual, 60_000, false],
    [last + usual, 1000, true],
    [`${usual}GARBAGE\r\n\r\n`, 1000, true],
  ] as const) {
    const { flaw, lost: wasLost } = judged(text, world, [], { isReset: true, tookMs })
    assert.deepEqual([wasLost, flaw === undefined], [lost, lost], `${tookMs} ms`)
  }
  assert.match(judged(last, world, [], { tookMs: 60_000 }).flaw ?? '', /not answered/)
})

test("oracle: a shared owner's list must hold what was acknowledged before", () => {
  const { world } = worldOf('other')
  const token = world.realm.tokenOf('all')
  const shared: World = { ...world, shared: new Map([['all', token]]) }
  const plant = plantOf(1n, SHARED_TEXT)
  const all = new Owner('all', token)
  announce(readRequests(post(all, `{"id":1,"name":"${plant.name}"}`)), shared)
  shared.ledger.answered('all', plant, 200)
  const flawOf = (list: string): string => judged(get(all), shared, [list]).flaw ?? 'none'
  assert.equal(flawOf('[{"name":"1 of all"}]'), 'none')
  assert.match(flawOf('[]'), /not in it/)
  assert.match(flawOf('[{"name":"1 of all"},{"name":"2 of all"}]'), /never sent/)
})
