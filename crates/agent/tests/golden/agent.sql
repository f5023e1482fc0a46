PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('agent','"0548b691c5df24927346fa548b327b7b"');
CREATE TABLE allotments (
        mediator BLOB NOT NULL, id BLOB NOT NULL, allotment TEXT NOT NULL,
        PRIMARY KEY (mediator, id)
    ) STRICT, WITHOUT ROWID;
INSERT INTO allotments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'3fb11fe80d4301524a532e7923f9bb0d','{"mediator":"6555d1e5cdc741e2effc00cf35202b9b","id":"3fb11fe80d4301524a532e7923f9bb0d","segment":"3fb11fe80d4301524a532e7923f9bb0d","generation":null,"purpose":"client","resources":{"space_bytes":3145728,"device":0,"network":0},"serial":1795984317748000,"state":{"committed":{"until":null}}}');
INSERT INTO allotments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'5b6d615bd80773e8b5d45eeb325c815d','{"mediator":"6555d1e5cdc741e2effc00cf35202b9b","id":"5b6d615bd80773e8b5d45eeb325c815d","segment":"5b6d615bd80773e8b5d45eeb325c815d","generation":null,"purpose":"client","resources":{"space_bytes":11534336,"device":0,"network":0},"serial":1795984308985000,"state":{"committed":{"until":null}}}');
INSERT INTO allotments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'b04490e0251e603092a4813182946396','{"mediator":"6555d1e5cdc741e2effc00cf35202b9b","id":"b04490e0251e603092a4813182946396","segment":"b04490e0251e603092a4813182946396","generation":null,"purpose":"client","resources":{"space_bytes":3145728,"device":0,"network":0},"serial":1795984309121000,"state":{"committed":{"until":null}}}');
INSERT INTO allotments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'd28f9de78e16cb811ed7976d7d53e271','{"mediator":"6555d1e5cdc741e2effc00cf35202b9b","id":"d28f9de78e16cb811ed7976d7d53e271","segment":"5b6d615bd80773e8b5d45eeb325c815d","generation":1,"purpose":"client","resources":{"space_bytes":0,"device":636480,"network":636480},"serial":1795984310470000,"state":{"committed":{"until":1795984337821}}}');
CREATE TABLE segments (
        mediator BLOB NOT NULL, segment BLOB NOT NULL, row TEXT NOT NULL,
        PRIMARY KEY (mediator, segment)
    ) STRICT, WITHOUT ROWID;
INSERT INTO segments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'3fb11fe80d4301524a532e7923f9bb0d','{"len_bytes":3145728,"generation":1,"taken_by":"f2305a786ade26783325343a101bb45e","removing":false,"label":{"version":1,"volume":"5e5ad89af63774add4335fd4c85b71e4","path":"\u0001films/part","kind":"data","member":0,"members":3,"level":5,"chunk_len":8192,"logged":true,"capacity_bytes":3670016,"length_bytes":0,"generation":0}}');
INSERT INTO segments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'5b6d615bd80773e8b5d45eeb325c815d','{"len_bytes":11534336,"generation":1,"taken_by":"d28f9de78e16cb811ed7976d7d53e271","removing":false,"label":{"version":1,"volume":"74857e942ed324064fff42090d7fae37","path":"/vm/disk","kind":"volume","member":0,"members":3,"level":5,"chunk_len":131072,"logged":true,"capacity_bytes":18350080,"length_bytes":18350080,"generation":0}}');
INSERT INTO segments VALUES(X'6555d1e5cdc741e2effc00cf35202b9b',X'b04490e0251e603092a4813182946396','{"len_bytes":3145728,"generation":1,"taken_by":"e3ba726178f95d8cae21c59986655b22","removing":false,"label":{"version":1,"volume":"6e59ec60a12cf557c72427c6c0ece1cc","path":"/films/two","kind":"data","member":0,"members":3,"level":5,"chunk_len":16384,"logged":true,"capacity_bytes":3670016,"length_bytes":3000000,"generation":1}}');
CREATE TABLE memberships (
        mediator BLOB PRIMARY KEY, membership TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO memberships VALUES(X'6555d1e5cdc741e2effc00cf35202b9b','{"url":"http://127.0.0.1:7400","authority":null,"says":"8tiH2tj9hM-31_p2Tc8x2l9UQnxavo2oJb14WruN2AY","hears":"983b3d8a980e92df4f694a7c3468d7e8b420f897fc0152ebe1076285f4c45e76","keys":{"version":1,"kind":"agent","last":1,"keys":[{"id":1,"from":1795984303444,"until":1796160703444,"secret":"YcBjD0pQdrrEq8SO8Mibz8tqagqp9hHzuxdyN6MKFcw"}]},"beat_ms":2000,"draining":false}');
CREATE TABLE revoked (
        mediator BLOB NOT NULL, plan BLOB NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (mediator, plan)
    ) STRICT, WITHOUT ROWID;
COMMIT;
PRAGMA user_version=2;
