import assert from 'node:assert/strict'
import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { VARIABLES } from '../dist/settings/table.js'
import { CATALOGUE } from '../dist/errors.js'
import { read, tableOf } from './support/documents.ts'
import { call } from './support/http.ts'
import { scrape } from './support/metrics.ts'
import { ROOT, VERSION } from './support/release.ts'
import { startService } from './support/service.ts'

/** The README for operators. */
const OPERATING = 'scripts/deploy/README.md'
const DASHBOARD = 'scripts/deploy/grafana-dashboard.json'

test('docs: the table of settings is that of the code', () => {
  const expected = VARIABLES.map(({ name, fallback, meaning }) => [
    `\`${name}\``,
    fallback === '' ? '' : `\`${fallback}\``,
    meaning,
  ])
  const isHeading = ([first = '']: readonly string[]) => first.startsWith('**')
  const rows = tableOf(OPERATING, 'variable').filter((row) => !isHeading(row))
  assert.deepEqual(rows, expected)
})

test('docs: the README lists exactly the error values of the catalogue', () => {
  const expected = Object.values(CATALOGUE)
    .map(([error]) => String(error))
    .sort()
  assert.deepEqual(
    tableOf('README.md', 'status').flatMap(([status = '', errors = '']) =>
      [...errors.matchAll(/\b(\d{3})\d{2}\b/g)].map(([error, digits]) => {
        assert.equal(digits, status, `${error} is not an error of ${status}`)
        return error
      }),
    ),
    expected,
  )
})

test('docs: SECURITY.md names the packages and versions of the manifest', () => {
  // The project's manifest, which has this member.
  const { dependencies } = JSON.parse(read('package.json')) as {
    dependencies: Record<string, string>
  }
  const named = tableOf('SECURITY.md', 'package').map(([name, pinned]) => [name, pinned])
  const used = Object.entries(dependencies).map(([name, pinned]) => [`\`${name}\``, pinned])
  assert.deepEqual(named, used)
})

test('docs: files and images have the version of the manifest', () => {
  const folder = 'scripts/deploy'
  const deploying = readdirSync(join(ROOT, folder)).map((name) => `${folder}/${name}`)
  const named = ['README.md', 'src/index.md', ...deploying].flatMap((name) =>
    [...read(name).matchAll(/\bplant-store[-:](\d+\.\d+\.\d+)/g)].map(([, version]) => version),
  )
  assert.ok(named.length > 5)
  assert.deepEqual([...new Set(named)], [VERSION])
})

test('docs: the metrics table names all metrics but two, and no other', async (t) => {
  // Keys that are fetched have metrics; their age is there only after a fetch that succeeded.
  const { port, adminPort } = await startService(t, { jwksUrl: 'http://127.0.0.1:1/keys' })
  await call(port)
  const { types } = await scrape(adminPort)
  const known = [...types.keys(), 'plant_store_key_set_age_seconds']
  const named = tableOf(OPERATING, 'metric').flatMap(([names = '']) =>
    names.split(', ').map((name) => name.replaceAll('`', '')),
  )
  for (const name of named) assert.ok(known.includes(name), `${name} is in the table only`)
  assert.deepEqual(named.sort(), known.sort())
  const places = ['README.md', OPERATING, 'scripts/deploy/alerts.yaml', DASHBOARD]
  const anywhere =
    places
      .map(read)
      .join()
      .match(/\b(?:http_server|plant_store|process|nodejs)_[a-z_]+/g) ?? []
  for (const name of anywhere)
    assert.ok(known.includes(name.replace(/_(?:bucket|sum|count)$/, '')), `${name} does not exist`)
})

/** Where documents are; fixtures and packages have none of ours. */
const DOCUMENTS = ['.', 'scripts', 'src'].flatMap((folder) =>
  readdirSync(join(ROOT, folder), { recursive: folder !== '.', encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join(folder, name)),
)

/** The anchors that hosts of repositories make of headings. */
function anchors(text: string): string[] {
  return [...text.matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  )
}

test('docs: every link and every path from the top of a document leads somewhere', () => {
  assert.ok(DOCUMENTS.length >= 9, `only ${DOCUMENTS.join()}`)
  for (const document of DOCUMENTS) {
    const text = read(document)
    const links = [...text.matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)/g)].map(
      ([, link = '', anchor]) => {
        const path = link === '' ? document : join(dirname(document), link)
        if (anchor !== undefined)
          assert.ok(anchors(read(path)).includes(anchor), `${document} names ${path}#${anchor}`)
        return path
      },
    )
    const paths = [...text.matchAll(/`((?:src|test|scripts)\/[\w./-]+)`/g)].map(
      ([, path = '']) => path,
    )
    for (const path of [...links, ...paths])
      assert.ok(existsSync(join(ROOT, path)), `${document} names ${path}`)
  }
})

test('docs: every target of make and every scenario in a document exists', () => {
  const targets = new Set([...read('Makefile').matchAll(/^([a-z]+):/gm)].map(([, name]) => name))
  const scenarios = read('scripts/measure.ts')
  // The changelog names targets that are removed.
  for (const document of DOCUMENTS.filter((name) => name !== 'CHANGELOG.md')) {
    const text = read(document)
    for (const [, target] of text.matchAll(/(?:`|^)make (?:-s )?([a-z]+)/gm))
      assert.ok(targets.has(target), `${document} names make ${target}`)
    for (const [, name = ''] of text.matchAll(/SCENARIO=([a-z-]+)/g))
      assert.match(scenarios, new RegExp(`^  ${name}: ['"]`, 'm'), `${document} names ${name}`)
  }
  const names = [...scenarios.matchAll(/^ {2}([a-z]+): ['"]/gm)].map(([, name = '']) => name)
  assert.ok(names.length > 0)
  for (const name of names)
    assert.ok(existsSync(join(ROOT, `scripts/measure/${name}.ts`)), `there is no scenario ${name}`)
})

test('docs: the two packages are imported only where SECURITY.md says', () => {
  const names = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  const files = names.filter((name) => name.endsWith('.ts'))
  const importing = (name: string): readonly string[] => {
    const pattern = `^(?!import type ).*(?:from |import |import\\(|require\\()'${name}[/']`
    return files.filter((file) => new RegExp(pattern, 'm').test(read(`src/${file}`)))
  }
  assert.deepEqual(importing('sql.js'), ['store/sqljs/sqlite/sqlite.ts'])
  const jose = importing('jose')
  assert.ok(jose.length > 0 && jose.every((file) => file.startsWith('auth/')), jose.join())
})

test('docs: every test file is in exactly one group of test/groups/', () => {
  const files = readdirSync(join(ROOT, 'test'), { recursive: true, encoding: 'utf8' })
  const imported = files
    .filter((name) => dirname(name) === 'groups')
    .flatMap((name) => [...read(`test/${name}`).matchAll(/^import '\.\.\/(.+)'$/gm)])
    .map(([, name]) => name)
  // The group http.ts has those of test/api/ that no group names.
  const isNamed = (name = ''): boolean => dirname(name) !== 'api' || imported.includes(name)
  const tests = files.filter((name) => name.endsWith('.test.ts') && isNamed(name))
  assert.deepEqual(imported.sort(), tests.sort())
})
