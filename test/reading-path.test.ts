import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { Agent } from 'node:http'
import { Session } from 'node:inspector/promises'
import { dirname, join, relative } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { sectionOf } from './support/documents.ts'
import { call, post } from './support/http.ts'
import { startService } from './support/service.ts'

/*
 * CONTRIBUTING.md, "Reading the source", lists the files that a create and a list pass, says which
 * of them only one passes, and names their helpers. Here a create and a list run, and V8 counts
 * calls: the files with calls must be exactly those that it names. Only their order is not
 * measured; imports are compared instead.
 */
const ROOT = fileURLToPath(new URL('..', import.meta.url))
const BUILT = pathToFileURL(join(ROOT, 'dist/')).href
/**
 * The HTTP layer and a storage meet in one of these interfaces, and so do a connection and its
 * host: neither imports the other.
 */
const INTERFACE = /import (?:type )?\{[^}]*\b(?:PlantStore|Responder)\b[^}]*\} from '([^']+)'/g
const IMPORT = /(?:from|import) '(\.[^']+)'/g
/** Longer than a chunk of a list. */
const LONG = 'x'.repeat(100_000)

function read(file: string): string {
  return readFileSync(join(ROOT, file), 'utf8')
}

const SECTION = sectionOf('CONTRIBUTING.md', 'Reading the source').split('\n')

/** The numbered list, without what only the `other` request passes. */
function pathWithout(other: 'create' | 'list'): readonly string[] {
  const items = SECTION.filter((line) => /^\d/.test(line)).map((line, i) => {
    const item = /^(\d+)\. (?:A (create|list) only: )?`(src\/[^`]+\.ts)`: \S/.exec(line)
    const [, number, only, file = ''] = item ?? []
    assert.equal(Number(number), i + 1, line)
    return { only, file }
  })
  return items.filter(({ only }) => only !== other).map(({ file }) => file)
}

/** The helpers: each row of the table has a folder and the names of files in it. */
function helperTable(): readonly string[] {
  return SECTION.flatMap((line) => {
    const [, folder, cell] = /^\| `(src\/[^`]*)` \| (.+) \|$/.exec(line) ?? []
    if (folder === undefined || cell === undefined) return []
    return [...cell.matchAll(/`([^`]+\.ts)`/g)].map(([, name = '']) => join(folder, name))
  })
}

/** The files that the matches of a pattern in `file` name. */
function namedIn(file: string, pattern: RegExp): readonly string[] {
  const targets = [...read(file).matchAll(pattern)].map(([, target = '']) => target)
  return targets.map((target) => join(dirname(file), target))
}

function isLinked(one: string, other: string): boolean {
  if (namedIn(one, IMPORT).includes(other) || namedIn(other, IMPORT).includes(one)) return true
  const interfaces = namedIn(other, INTERFACE)
  // An operation gets its store through `call.ts`.
  const used = [one, ...namedIn(one, IMPORT)].flatMap((file) => namedIn(file, INTERFACE))
  return used.some((file) => interfaces.includes(file))
}

const CREATE = pathWithout('list')
const LIST = pathWithout('create')
const HELPERS = helperTable()

/** Returns a function that returns the source files that were called since its last call. */
async function countCalls(): Promise<() => Promise<readonly string[]>> {
  const session = new Session()
  session.connect()
  await session.post('Profiler.enable')
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  return async () => {
    const { result } = await session.post('Profiler.takePreciseCoverage')
    const called = result.filter(
      ({ url, functions }) =>
        url.startsWith(BUILT) && functions.some(({ ranges }) => (ranges[0]?.count ?? 0) > 0),
    )
    return called.map(({ url }) =>
      join('src', relative(join(ROOT, 'dist'), fileURLToPath(url)).replace(/\.js$/, '.ts')),
    )
  }
}

test('reading path: a create passes at most 7 files and a list at most 7', () => {
  assert.ok(CREATE.length >= 2 && CREATE.length <= 7, `${CREATE.length} files`)
  assert.ok(LIST.length >= 2 && LIST.length <= 7, `${LIST.length} files`)
  const named = [...new Set([...CREATE, ...LIST]), ...HELPERS]
  assert.equal(new Set(named).size, named.length, 'a helper is named twice, or is on a path')
})

for (const [name, path] of Object.entries({ create: CREATE, list: LIST })) {
  test(`reading path: each file of a ${name} and the next are linked by an import`, () => {
    for (const [i, file] of path.slice(1).entries()) {
      const before = path[i] ?? ''
      assert.ok(isLinked(before, file), `${before} and ${file} do not import each other`)
    }
  })
}

test('reading path: a create and a list run exactly the files that are named', async (t) => {
  // The admin listener measures the event loop by a timer of its own.
  const { port } = await startService(t, { adminListen: 'off' })
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  const calls = await countCalls()
  // A create looks at the lock if nothing has looked at it for a second.
  const { now } = performance
  t.after(() => (performance.now = now))
  performance.now = () => now.call(performance) + 1100
  await calls()
  for (const id of [1, 2, 3])
    assert.equal((await post(port, { id, name: LONG, tag: 'x' }, { agent })).status, 200)
  const created = await calls()
  // Of several chunks; with a Link; short; from the cache.
  for (const query of ['', '?limit=2', '?limit=0', '?limit=0'])
    assert.equal((await call(port, { path: `/plants${query}`, agent })).status, 200)
  const listed = await calls()
  const unnamed = (files: readonly string[], path: readonly string[]): readonly string[] =>
    files.filter((file) => !path.includes(file) && !HELPERS.includes(file))
  assert.deepEqual(unnamed(created, CREATE), [], 'a create runs files that are not named')
  assert.deepEqual(unnamed(listed, LIST), [], 'a list runs files that are not named')
  assert.deepEqual(notIn(CREATE, created), [], 'a create does not run these files')
  assert.deepEqual(notIn(LIST, listed), [], 'a list does not run these files')
  assert.deepEqual(notIn(HELPERS, [...created, ...listed]), [], 'these helpers do not run')
})

test('reading path: of a start and a compaction each file and its function exists', () => {
  const lines = SECTION.join('\n').split('A start and a compaction run')[1] ?? ''
  const named = [...lines.matchAll(/`([\w/-]+\.ts)`(?: \(([^)]+)\))?/g)]
  assert.ok(named.length >= 9)
  for (const [, file = '', functions = ''] of named)
    for (const [, name = ''] of functions.matchAll(/`([#\w]+)`/g))
      assert.ok(read(join('src/store/sqljs', file)).includes(`${name}(`), `${file}: ${name}`)
  for (const [, file = ''] of named) read(join('src/store/sqljs', file))
})

function notIn(files: readonly string[], all: readonly string[]): readonly string[] {
  return files.filter((file) => !all.includes(file))
}
