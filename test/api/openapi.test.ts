import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { description } from '../../dist/api/description.js'
import { OPERATIONS, ROUTES } from '../../dist/api/operations.js'
import { failureCases, METHODS, send, type SendOptions, SPECIAL } from '../support/conditions.ts'
import { call, post } from '../support/http.ts'
import { ROOT } from '../support/release.ts'
import { flaws, inlined, isObject, resolve, type Schema } from '../support/schema.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { assertCommon, conditions, headerLines, verdict } from '../support/verdict.ts'
import type { WireAnswer } from '../support/wire.ts'

type Named<T> = Readonly<Record<string, T>>

interface Described {
  readonly headers: Named<{ readonly required: boolean; readonly schema: Schema }>
  readonly content?: Named<{ readonly schema: Schema; readonly examples: Named<Schema> }>
}

interface Operation {
  readonly operationId: string
  readonly parameters?: readonly { readonly name: string; readonly schema: Schema }[]
  readonly responses: Named<Described>
}

interface Document {
  /** The member `parameters` has those that all operations of the path share. */
  readonly paths: Named<Named<Operation> & { readonly parameters?: never }>
}

const written: unknown = JSON.parse(description())
// A missing member fails where it is used.
const document = inlined(written) as Document

function operationOf(method: string, path = '/plants'): Operation {
  return document.paths[path]?.[method] ?? assert.fail(`${method} ${path} is not described`)
}

/** Every operation that is described, with its path and its method. */
const DESCRIBED = Object.entries(document.paths).flatMap(([path, { parameters: _, ...methods }]) =>
  Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
)

/** All objects of a document, each with its path. */
function* objectsIn(value: unknown, at = '#'): Generator<readonly [string, Schema]> {
  if (isObject(value)) yield [at, value]
  if (typeof value !== 'object' || value === null) return
  for (const [name, member] of Object.entries(value)) yield* objectsIn(member, `${at}/${name}`)
}

/** Compares an answer with its description: under its own status, or under "default". */
function assertDescribed(
  { operationId, responses }: Operation,
  answer: WireAnswer,
  key = String(answer.status),
): void {
  assertCommon(answer)
  const where = `${operationId} ${answer.status}`
  if (key === 'default') assert.equal(responses[answer.status], undefined, where)
  const { headers, content } = responses[key] ?? assert.fail(`${where} is not described`)
  for (const [name, { required, schema }] of Object.entries(headers)) {
    const lines = headerLines(answer, name.toLowerCase())
    assert.ok(lines.length <= 1 && (lines.length === 1 || !required), `${where}: ${name}`)
    for (const line of lines) {
      const value = schema['type'] === 'integer' ? Number(line) : line
      assert.deepEqual(flaws(document, schema, value), [], `${where}: ${name}`)
    }
  }
  const described = Object.keys(headers).map((name) => name.toLowerCase())
  const sent = SPECIAL.filter((name) => headerLines(answer, name).length > 0)
  const others = sent.filter((name) => !described.includes(name))
  assert.deepEqual(others, [], where)
  if (content === undefined) return assert.equal(answer.body, '', where)
  const { schema, examples } =
    content[headerLines(answer, 'content-type').join()] ??
    assert.fail(`${where}: another media type`)
  const condition = verdict(answer)
  assert.ok(typeof condition === 'number' || condition in examples, `${where}: ${condition}`)
  assert.deepEqual(flaws(document, schema, JSON.parse(answer.body), true), [], where)
}

/** Examples of failures have the names of their conditions. */
function exampleNames({ content }: Described): readonly string[] {
  return Object.keys(content?.['application/json']?.examples ?? {})
}

test('openapi: what is served was made from the table of operations', async (t) => {
  const { adminPort } = await startService(t)
  const served = await call(adminPort, { path: '/openapi.json', token: undefined })
  assert.ok(served.text === description())
  if (!THOROUGH) return
  const args = ['--import', 'tsx', 'scripts/openapi.ts']
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: ROOT })
  assert.ok(served.text === stdout, 'openapi.json is not up to date: make openapi')
})

test('openapi: the document is consistent', () => {
  const at = (path: string) => resolve(document, `#/${path}`)
  assert.equal(at('info/version'), '1.0.0', 'of the interface')
  assert.match(String(at('info/contact/name')), /operators/, 'Spectral asks for a contact')
  const servers = JSON.stringify(at('servers'))
  assert.match(servers, /^\[{"url":"http:\/\/127.0.0.1:8080"[^{]*$/, 'generators take it as base')
  const schemas = at('components/schemas')
  assert.ok(isObject(schemas))
  assert.deepEqual(Object.keys(schemas), ['Plant', 'NewPlant', 'Error'])
  const bearer = ['type', 'scheme', 'bearerFormat'].map((name) =>
    at(`components/securitySchemes/bearer/${name}`),
  )
  assert.deepEqual(bearer, ['http', 'bearer', 'JWT'])
  assert.deepEqual(at('security'), [{ bearer: [] }], 'for the whole service')

  const references = new Set<string>()
  for (const [place, { $ref }] of objectsIn(written)) {
    if (typeof $ref !== 'string') continue
    assert.ok(isObject(resolve(written, $ref)), place)
    references.add($ref)
  }
  const examples: string[] = []
  for (const [place, { schema, examples: shown }] of objectsIn(document.paths)) {
    if (!isObject(shown)) continue
    for (const [name, example] of Object.entries(shown)) {
      assert.ok(isObject(example) && isObject(schema), place)
      assert.deepEqual(flaws(document, schema, example['value'], true), [], `${place}: ${name}`)
      examples.push(name)
    }
  }
  const { securitySchemes: _, ...components } = at('components') as Record<string, object>
  const named = Object.entries(components).flatMap(([kind, each]) =>
    Object.keys(each).map((name) => `#/components/${kind}/${name}`),
  )
  assert.deepEqual([...references].sort(), named.sort(), 'each component is used')
  const missing = [...conditions.keys()].filter((condition) => !examples.includes(condition))
  assert.deepEqual(missing, [], 'every failure of the catalogue is shown')
})

test('openapi: every operation of the table is described, on any path', () => {
  const ids = DESCRIBED.map(({ operation }) => operation.operationId)
  assert.equal(new Set(ids).size, ids.length)
  const expected = ROUTES.flatMap(({ path, allow }) =>
    allow.split(', ').map((method) => `${method.toLowerCase()} ${path}`),
  )
  assert.deepEqual(DESCRIBED.map(({ method, path }) => `${method} ${path}`).sort(), expected.sort())

  for (const { name, method, path } of OPERATIONS) {
    const { operationId, responses } = operationOf(method.toLowerCase(), path)
    assert.equal(operationId, name)
    if (method !== 'GET') continue
    const { responses: ofHead } = operationOf('head', path)
    assert.deepEqual(Object.keys(ofHead), Object.keys(responses))
    const withoutBody = Object.values(responses).map(({ content: _, ...rest }) => rest)
    assert.deepEqual(Object.values(ofHead), withoutBody)
  }
})

test('openapi: the service accepts what the description allows, and nothing else', async (t) => {
  const { port } = await startService(t)
  const assertStatus = (status: number, schema: Schema, value: unknown): void => {
    const expected = flaws(document, schema, value).length === 0 ? 200 : 400
    assert.equal(status, expected, JSON.stringify(value))
  }
  const NewPlant = { $ref: '#/components/schemas/NewPlant' }
  const plants = [
    ...['{"id":1,"name":"a"}', '{"id":-5,"name":"","tag":""}'],
    `{"id":${2 ** 53},"name":"a","tag":"b","other":[null]}`,
    `{"id":${-(2 ** 62)},"name":"\\u0000\ud83c\udf31"}`,
    ...['{"id":3}', '{"name":"a"}', '{"id":"3","name":"a"}', '{"id":3.5,"name":"a"}'],
    ...[`{"id":${2 ** 64},"name":"a"}`, '{"id":null,"name":"a"}', '{"id":3,"name":4}'],
    ...['{"id":3,"name":"a","tag":null}', '{"id":3,"name":"a","tag":4}', '[]', '"a"', 'null'],
  ]
  for (const plant of plants)
    assertStatus((await post(port, plant)).status, NewPlant, JSON.parse(plant))

  const [limit = assert.fail(), after = assert.fail()] = operationOf('get').parameters ?? []
  const cut = headerLines(await call(port, { path: '/plants?limit=2' }), 'link').join()
  const [, cursor = ''] = /&after=([^>]*)>/.exec(cut) ?? []
  for (const [name, { name: described, schema }, values] of [
    ['limit', limit, [0, 1, 2 ** 31 - 1, -1, 2 ** 31, 0.5]],
    ['after', after, [cursor, '']],
  ] as const) {
    assert.equal(described, name)
    for (const value of values) {
      const { status } = await call(port, { path: `/plants?${name}=${value}` })
      assertStatus(status, schema, value)
    }
  }
})

test('openapi: every failure is described where it occurs, and nowhere else', async (t) => {
  const { cases } = await failureCases(t)
  for (const [condition, [error, message]] of conditions) {
    const { ask, path = '/plants' } = cases[condition]
    for (const method of METHODS.filter((each) => document.paths[path]?.[each])) {
      // An answer to HEAD has no body; its conditions are those of GET.
      const isHead = method === 'head'
      const operation = operationOf(method, path)
      const shown = isHead ? operationOf('get', path) : operation
      const [key, response] =
        Object.entries(shown.responses).find(([, each]) =>
          exampleNames(each).includes(condition),
        ) ?? []
      await t.test(`${method}: ${response ? '' : 'never '}${error}`, async () => {
        const answer = await ask(method)
        // To cause it, another method was sent, whose answer has a body.
        if (isHead && answer.body !== '') return
        assertDescribed(operation, answer, key)
        if (response && key !== 'default') assert.equal(answer.status, Number(key))
        if (isHead) return
        assert.equal(verdict(answer) === condition, response !== undefined)
        const example = response?.content?.['application/json']?.examples[condition]
        if (response) assert.deepEqual(example?.['value'], { error, message })
      })
    }
  }
})

test('openapi: every success is described, and every description of one occurs', async (t) => {
  const { port } = await startService(t)
  const seen = new Set<string>()
  const succeed = async (method: string, options: SendOptions = {}, path = '/plants') => {
    const answer = await send(port, method, options)
    assertDescribed(operationOf(method, path), answer)
    seen.add(`${method} ${path} ${answer.status}`)
    return answer
  }
  assert.equal((await succeed('get')).body, '[]')
  const second = { id: 2, name: 'b', tag: 'c' }
  for (const body of [{ id: 1, name: 'a' }, second, second]) await succeed('post', { body })
  assert.equal((await succeed('get')).body, '[{"name":"a"},{"name":"b","tag":"c"}]')
  for (const method of ['get', 'head']) {
    const page = await succeed(method, { target: '/plants?limit=1' })
    assert.equal(headerLines(page, 'link').length, 1)
  }
  for (const { method, path } of DESCRIBED) {
    const needsNone = method === 'options' ? { token: undefined } : {}
    await succeed(method, { target: path.replace(/\{\w+\}/g, '1'), ...needsNone }, path)
  }
  const described = DESCRIBED.flatMap(({ method, path, operation }) =>
    Object.keys(operation.responses)
      .filter((status) => Number(status) < 400)
      .map((status) => `${method} ${path} ${status}`),
  )
  assert.deepEqual([...seen].sort(), described.sort())
})
