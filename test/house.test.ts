import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize, relative } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type Node, SyntaxKind } from 'typescript/unstable/ast'
import * as is from 'typescript/unstable/ast/is'
import { API } from 'typescript/unstable/sync'

/*
 * The rules of the house, which CONTRIBUTING.md lists: how long lines, functions and files are,
 * which folder may import which, and no puzzles.
 */
const ROOT = fileURLToPath(new URL('..', import.meta.url))
const COLUMNS_MAX = 100
const FILE_LINES_MAX = 250
const FUNCTION_LINES_MAX = 60

/**
 * What the files of a folder of src/ may import besides each other, below src/ too. src/ itself,
 * cli/ and store/ wire.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  plants: [],
  settings: ['errors.ts', 'telemetry', 'auth', 'http'],
  limits: [],
  telemetry: ['errors.ts'],
  auth: ['errors.ts', 'latest.ts', 'limits', 'telemetry'],
  http: ['errors.ts', 'limits'],
  api: ['errors.ts', 'latest.ts', 'limits', 'telemetry', 'plants', 'auth', 'http'],
  'store/sqljs/sqlite': ['errors.ts'],
  'store/sqljs/disk': ['errors.ts', 'store/sqljs/sqlite'],
  'store/sqljs/memory': ['limits', 'plants', 'store/sqljs/sqlite', 'store/sqljs/disk'],
  'store/sqljs': [
    ...['errors.ts', 'limits', 'telemetry', 'plants'],
    ...['store/sqljs/sqlite', 'store/sqljs/disk', 'store/sqljs/memory'],
  ],
  'store/etcd': ['errors.ts', 'limits', 'telemetry', 'plants'],
}
/** Only wiring knows a store. */
const STORES = /^store\/(?:sqljs|etcd)$/

function filesIn(folder: string): readonly string[] {
  const names = readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
  return names.filter((name) => /(?<!\.d)\.ts$/.test(name)).map((name) => join(folder, name))
}

const SOURCES = filesIn('src')
const texts = new Map(
  [...SOURCES, ...filesIn('test'), ...filesIn('scripts')].map((file) => [
    file,
    readFileSync(join(ROOT, file), 'utf8'),
  ]),
)
const textOf = (file: string): string => texts.get(file) ?? assert.fail(file)

/** The files of src/ that each file of src/ imports, types included. */
const imports = new Map(
  SOURCES.map((file) => {
    const found = [...textOf(file).matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/g)]
    const targets = found.map(([, target = '']) => normalize(join(dirname(file), target)))
    return [file, targets.filter((target) => texts.has(target))] as const
  }),
)

/** Lines that hold more than a comment. */
function codeLines(text: string): number {
  const code = text.replace(/\/\*[^]*?\*\//g, '').split('\n')
  return code.filter((line) => /^\s*(?!\/\/)\S/.test(line)).length
}

function* nodesIn(node: Node): Generator<Node> {
  yield node
  const children: Node[] = []
  node.forEachChild((child) => void children.push(child))
  for (const child of children) yield* nodesIn(child)
}

const FUNCTIONS: readonly ((node: Node) => boolean)[] = [
  is.isFunctionDeclaration,
  is.isFunctionExpression,
  is.isArrowFunction,
  is.isMethodDeclaration,
  is.isConstructorDeclaration,
  is.isGetAccessorDeclaration,
  is.isSetAccessorDeclaration,
]
const LOGICAL = [SyntaxKind.AmpersandAmpersandToken, SyntaxKind.BarBarToken]

function withoutParentheses(node: Node): Node {
  return is.isParenthesizedExpression(node) ? node.expression : node
}

/** Calls `check` with each node of src/; returns its complaints with their places. */
function complaints(check: (node: Node, text: string) => string | undefined): readonly string[] {
  const api = new API({ cwd: ROOT })
  try {
    const [project] = api.updateSnapshot({ openProject: join(ROOT, 'tsconfig.json') }).getProjects()
    return SOURCES.flatMap((file) => {
      const source = project?.program.getSourceFile(join(ROOT, file)) ?? assert.fail(file)
      return [...nodesIn(source)].flatMap((node) => {
        const what = check(node, textOf(file).slice(node.pos, node.end))
        if (what === undefined) return []
        return [`${file}:${textOf(file).slice(0, node.end).split('\n').length} ${what}`]
      })
    })
  } finally {
    api.close()
  }
}

test('house: lines have at most 100 columns', () => {
  const long = [...texts].flatMap(([file, text]) =>
    text
      .split('\n')
      .map((line, at) => (line.length > COLUMNS_MAX ? `${file}:${at + 1}` : ''))
      .filter((place) => place !== ''),
  )
  assert.deepEqual(long, [])
})

test('house: a source file has at most 250 lines of code', () => {
  const long = SOURCES.filter((file) => codeLines(textOf(file)) > FILE_LINES_MAX)
  assert.deepEqual(long, [])
})

test('house: no import circle, types included', () => {
  const circles = new Set<string>()
  const walk = (file: string, path: readonly string[]): void => {
    for (const next of imports.get(file) ?? []) {
      if (next === path[0]) circles.add([...path].sort().join(' '))
      else if (!path.includes(next) && path.length < 6) walk(next, [...path, next])
    }
  }
  for (const file of SOURCES) walk(file, [file])
  assert.deepEqual([...circles], [])
})

test('house: every source file is used', () => {
  const used = new Set([...imports.values()].flat())
  // The entry of the package, and of the program.
  const entries = ['src/index.ts', 'src/main.ts']
  const unused = SOURCES.filter((file) => !used.has(file) && !entries.includes(file))
  assert.deepEqual(unused, [])
})

test('house: imports lead only where their folder may look', () => {
  const folderOf = (file: string): string => relative('src', dirname(file))
  const wrong = SOURCES.flatMap((file) => {
    const folder = folderOf(file)
    const allowed = MAY_IMPORT[folder]
    return (imports.get(file) ?? []).flatMap((target) => {
      const other = folderOf(target)
      if (!allowed || other === folder || allowed.includes(other)) return []
      return allowed.includes(relative('src', target)) ? [] : [`${file} imports ${target}`]
    })
  })
  assert.deepEqual(wrong, [])
  const folders = SOURCES.map(folderOf)
  const gone = Object.keys(MAY_IMPORT).filter((folder) => !folders.includes(folder))
  const stores = Object.values(MAY_IMPORT).flat().filter((name) => STORES.test(name))
  assert.deepEqual([gone, stores], [[], []])
})

test('house: only http/ and api/ know the errors that have a status', () => {
  const users = SOURCES.filter((file) => /\bHttpError\b/.test(textOf(file)))
  const others = users.filter((file) => !/^src\/(?:http|api)\//.test(file))
  assert.deepEqual(others, ['src/errors.ts'])
})

test('house: no long functions, and no puzzles', () => {
  const found = complaints((node, text) => {
    if (FUNCTIONS.some((isOne) => isOne(node)) && codeLines(text) > FUNCTION_LINES_MAX)
      return 'a function of more than 60 lines'
    if (is.isBinaryExpression(node) && node.operatorToken.kind === SyntaxKind.CommaToken)
      return 'a comma expression'
    if (is.isConditionalExpression(node)) {
      const parts = [node.condition, node.whenTrue, node.whenFalse]
      if (parts.map(withoutParentheses).some(is.isConditionalExpression)) return 'a nested ternary'
    }
    if (is.isExpressionStatement(node) && is.isBinaryExpression(node.expression)) {
      if (LOGICAL.includes(node.expression.operatorToken.kind)) return '&& or || as a statement'
    }
    return undefined
  })
  assert.deepEqual(found, [])
})
