import { types } from 'node:util'
import type { Database, FileBytes, SqlJs, Statement, Value } from 'sql.js'
import { metaOf } from './meta.ts'
import type { PageFile } from './page-file.ts'
import { ownSqlite, valueOf } from './sqlite.ts'

/** Instead of a value that has the wrong type: which type, in words. */
interface WrongType {
  readonly kind: string
}

/** A row of a file of any origin. */
export interface Cells {
  readonly owner: string | WrongType
  readonly id: bigint | WrongType
  readonly name: string | WrongType
  readonly tag: string | WrongType
}

export const NULL = 'NULL'
const KINDS: Readonly<Record<string, string>> = {
  null: NULL,
  integer: 'an integer',
  real: 'a real number',
  text: 'text',
  blob: 'a blob',
}

/*
 * The bytes of a text; the type's name of anything else. Of a text, sql.js would drop a byte order
 * mark at its start, and replace what is not valid by U+FFFD, which makes one owner of two.
 */
const textOf = (column: string): string =>
  `iif(typeof(${column}) = 'text', CAST(${column} AS BLOB), typeof(${column}))`
/*
 * No ORDER BY and no index: sorting rows that never end would never return one. Reading a plain
 * table from its first page to its last runs no code that is in the file.
 */
const ROWS = `
  SELECT ${textOf('owner')}, iif(typeof(id) = 'integer', id, typeof(id)),
    ${textOf('name')}, ${textOf('tag')}
  FROM main.plants NOT INDEXED`

type Decoder = InstanceType<typeof TextDecoder>

export interface SourceRows {
  /** Every row, in the table's order. @throws Error when the file cannot be read any more. */
  readonly rows: Generator<Cells>
  readonly total: number
  /** Whether the file is a snapshot that needs journals: a service ran when it was made. */
  readonly isPartial: boolean
}

/**
 * The table of plants in a file.
 * @throws Error when the file has no such table, or is damaged.
 */
export async function openRows(pages: PageFile): Promise<SourceRows> {
  const library = await ownSqlite()
  return pages.through(() => rowsIn(library, pages))
}

function rowsIn(library: SqlJs, pages: PageFile): SourceRows {
  const db = new library.Database(pages.bytes)
  try {
    // What sqlite.org/security.html asks for, as far as it is not the default here.
    db.run('PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON')
    refuseOtherThanTable(db)
    refuseDamaged(db, pages.lengthBytes)
    const encoding = String(valueOf(db, 'PRAGMA encoding'))
    const decoder = new TextDecoder(encoding, { fatal: true, ignoreBOM: true })
    const rows = rowsOf(pages, db, db.prepare(ROWS), decoder)
    const total = Number(valueOf(db, 'SELECT count(*) FROM main.plants NOT INDEXED'))
    return { rows, total, isPartial: isPartial(library, pages.bytes) }
  } catch (error) {
    db.close()
    throw error
  }
}

function* rowsOf(
  pages: PageFile,
  db: Database,
  rows: Statement,
  decoder: Decoder,
): Generator<Cells> {
  try {
    while (rows.step()) {
      const [owner, id, name, tag] = rows.get(null, { useBigInt: true })
      yield {
        owner: cellOf(decoder, owner),
        id: typeof id === 'bigint' ? id : { kind: kindOf(id) },
        name: cellOf(decoder, name),
        tag: cellOf(decoder, tag),
      }
    }
  } catch (error) {
    throw pages.causeOf(error)
  } finally {
    db.close()
  }
}

function isPartial(library: SqlJs, bytes: FileBytes): boolean {
  try {
    const { format, complete } = metaOf(library, bytes)
    return Number.isInteger(format) && !complete
  } catch {
    // It is no snapshot.
    return false
  }
}

/** A view can run without end; virtual tables and generated columns run what the file says. */
function refuseOtherThanTable(db: Database): void {
  const [found] = all(db, 'PRAGMA main.table_list(plants)')
  if (!found) throw new Error('there is no table named plants')
  const type = String(found[2])
  const kind = type === 'view' ? type : `${type} table`
  if (type !== 'table') throw new Error(`plants must be a plain table, and is a ${kind}`)
  // The last value of each column says whether it is hidden or generated.
  if (all(db, 'PRAGMA main.table_xinfo(plants)').some((column) => column.at(-1) !== 0)) {
    throw new Error('plants must be a plain table, and has a generated column')
  }
}

/**
 * SQLite reads zeros after the end of a file, and whatever a damaged page seems to hold. These are
 * plants that were never created, of owners that do not exist. Pages that refer to each other have
 * endless rows.
 */
function refuseDamaged(db: Database, lengthBytes: number): void {
  const bytes = Number(valueOf(db, 'PRAGMA page_count')) * Number(valueOf(db, 'PRAGMA page_size'))
  if (bytes > lengthBytes) throw new Error(`it is cut off after ${lengthBytes} of ${bytes} bytes`)
  // A check would run what the file says.
  db.run('PRAGMA ignore_check_constraints = ON')
  const verdict = String(valueOf(db, 'PRAGMA main.quick_check(plants)'))
  if (verdict === 'ok') return
  // Of pages, the first line only says in which database they are.
  const [only, first = only] = verdict.split('\n')
  const cure = 'the command .recover of sqlite3 makes a file of what can be read'
  throw new Error(`SQLite finds damage (${first}): ${cure}`)
}

function cellOf(decoder: Decoder, value: Value | undefined): string | WrongType {
  if (!types.isUint8Array(value)) return { kind: kindOf(value) }
  try {
    return decoder.decode(value)
  } catch {
    return { kind: `not valid ${decoder.encoding.toUpperCase()}` }
  }
}

function kindOf(value: Value | undefined): string {
  return KINDS[String(value)] ?? 'not known'
}

function all(db: Database, sql: string): Value[][] {
  const statement = db.prepare(sql)
  const rows: Value[][] = []
  while (statement.step()) rows.push(statement.get())
  statement.free()
  return rows
}
