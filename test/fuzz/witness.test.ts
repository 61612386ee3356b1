import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { HttpResponse } from '../../scripts/fuzz/answers.ts'
import { readRequests } from '../../scripts/fuzz/http.ts'
import { Owner } from '../../scripts/fuzz/model.ts'
import { Realm } from '../../scripts/fuzz/realm.ts'
import type { Talk } from '../../scripts/fuzz/talk.ts'
import { compare, type Comparison, type World } from '../../scripts/fuzz/witness.ts'

function worldOf(name: string): { readonly world: World; readonly owner: Owner } {
  const [realm] = Realm.all()
  const owner = new Owner(name, realm.tokenOf(name, 'plants'))
  return { world: { realm, owners: new Map([[name, owner]]), shared: new Map() }, owner }
}

function request(
  method: string,
  { token }: Owner,
  lines: readonly string[] = [],
  body = '',
): string {
  const of = body === '' ? [] : ['Content-Type: application/json', `Content-Length: ${body.length}`]
  return `${[`${method} /plants HTTP/1.1`, 'Host: a', `Authorization: Bearer ${token}`, ...of, ...lines].join('\r\n')}\r\n\r\n${body}`
}

function listed(body: string): HttpResponse {
  const headers = new Map(
    [
      ['cache-control', 'no-store'],
      ['x-content-type-options', 'nosniff'],
      ['request-id', 'a'.repeat(36)],
      ['date', 'Thu, 01 Jan 1970 00:00:00 GMT'],
      ['content-type', 'application/json'],
      ['content-length', String(body.length)],
    ].map(([name = '', value = '']) => [name, [value]] as const),
  )
  return { status: 200, headers, body, framing: 'length', interim: 0 }
}

function judged(text: string, world: World, heard: Partial<Talk>): Comparison {
  return compare(
    readRequests(text),
    { answers: [], cut: false, end: '', isReset: false, tookMs: 1, flaw: undefined, ...heard },
    world,
    new Map(),
    false,
  )
}

test('fuzz: a create whose answer never came leaves open whether it is listed, and its owner must not be asked again', () => {
  const { world, owner } = worldOf('other 24 plants')
  assert.equal(judged(request('GET', owner), world, { answers: [listed('[]')] }).flaw, undefined)
  assert.equal(
    judged(request('POST', owner, [], '{"id":-70,"name":"-70 0"}'), world, { cut: true }).flaw,
    undefined,
  )
  assert.equal(owner.isCertain, false)
  assert.deepEqual(
    [[], [{ name: '-70 0' }], [{ name: '-70 1' }], [{ name: '-70 0' }, { name: '-70 0' }]].map(
      (list) => owner.explains(list),
    ),
    [true, true, false, false],
  )
  for (const list of ['[]', '[{"name":"-70 0"}]'])
    assert.match(
      judged(request('GET', owner), world, { answers: [listed(list)] }).flaw ?? '',
      /should not have asked/,
    )
})

test('fuzz: of an owner of whom all is known, a list that has a plant more or less is wrong', () => {
  const { world, owner } = worldOf('known')
  owner.keep(7n, { name: 'a' })
  const flaws = [
    '[{"name":"a"}]',
    '[]',
    '[{"name":"a"},{"name":"a"}]',
    '[{"name":"b"}]',
    '[{"name":"a","tag":""}]',
  ].map((list) => judged(request('GET', owner), world, { answers: [listed(list)] }).flaw)
  assert.equal(flaws[0], undefined)
  for (const flaw of flaws.slice(1)) assert.match(flaw ?? '', /known's list has/)
})

test('fuzz: a reset excuses missing answers behind a last request alone, and not before its second is over', () => {
  const { world, owner } = worldOf('reset')
  const usual = request('GET', owner)
  const last = request('GET', owner, ['Connection: close'])
  for (const [text, tookMs, lost] of [
    [last, 1000, true],
    [last, 999, false],
    [usual, 60_000, false],
    [last + usual, 1000, true],
    [`${usual}GARBAGE\r\n\r\n`, 1000, true],
  ] as const) {
    const { flaw, lost: wasLost } = judged(text, world, { isReset: true, tookMs })
    assert.deepEqual([wasLost, flaw === undefined], [lost, lost], `${tookMs} ms`)
  }
  assert.match(judged(last, world, { tookMs: 60_000 }).flaw ?? '', /not answered/)
})
